#include <ATen/ATen.h>

#include "distca/train/step_losses.h"

#include <numeric>
#include <span>

#include "distca/comm/host_read.h"

namespace distca {

void StepLosses::put(int nano_batch, const at::Tensor& sums, const at::Tensor& of_tokens) {
  NanoBatch& nano = nano_batches_.at(nano_batch);
  nano.sums = sums;
  nano.of_tokens = of_tokens;
  unread_.push_back(nano_batch);
}

void StepLosses::read() {
  if (unread_.empty()) return;
  std::vector<at::Tensor> parts;
  for (const int nano_batch : unread_) {
    const NanoBatch& nano = nano_batches_[nano_batch];
    parts.push_back(nano.sums);
    if (nano.of_tokens.defined()) parts.push_back(nano.of_tokens);
  }
  const at::Tensor all = host_copy(at::cat(parts)).to(at::kDouble);
  const double* next = all.const_data_ptr<double>();
  const auto take = [&next](const at::Tensor& part) {
    const std::span values(next, static_cast<size_t>(part.numel()));
    next += part.numel();
    return values;
  };
  for (const int nano_batch : unread_) {
    NanoBatch& nano = nano_batches_[nano_batch];
    const std::span<const double> sums = take(nano.sums);
    const double sum = std::accumulate(sums.begin(), sums.end(), 0.0);
    sum_ += sum;
    if (nano.of_tokens.defined())
      nano.losses.add(sum, take(nano.of_tokens), nano.tokens->targets, nano.tokens->positions);
    nano.sums.reset();
    nano.of_tokens.reset();
  }
  unread_.clear();
}

double StepLosses::sum() {
  read();
  return sum_;
}

std::vector<PositionLosses> StepLosses::by_position() {
  read();
  std::vector<PositionLosses> all;
  for (const NanoBatch& nano : nano_batches_) all.push_back(nano.losses);
  return all;
}

}  // namespace distca
