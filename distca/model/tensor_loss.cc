// The loss of a vocabulary that ranks divide.

#include <ATen/ATen.h>

#include "distca/model/tensor_phases.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "distca/base/error.h"
#include "distca/base/integers.h"
#include "distca/comm/host_read.h"
#include "distca/model/llama_state.h"

namespace distca {
namespace {

/// Rows whose logits exist at the same time.
struct Chunk {
  int64_t begin = 0;            // the first of them in the part of each rank
  std::vector<int64_t> counts;  // [T] rows of each rank
  std::vector<int64_t> tokens;  // all of them in rank order, as places in the R tokens
};

std::vector<Chunk> chunks_of(int64_t num_tokens, int num_ranks, int64_t chunk_tokens) {
  const int64_t each = std::max<int64_t>(1, chunk_tokens / num_ranks);
  const int64_t most = ceil_div(num_tokens, static_cast<int64_t>(num_ranks));  // rows of a rank
  std::vector<Chunk> chunks;
  for (int64_t begin = 0; begin < most; begin += each) {
    Chunk& chunk = chunks.emplace_back(Chunk{.begin = begin, .counts = {}, .tokens = {}});
    for (int rank = 0; rank < num_ranks; ++rank) {
      const Range own = TensorPlace{.size = num_ranks, .index = rank}.part(num_tokens);
      chunk.counts.push_back(std::clamp<int64_t>(own.size() - begin, 0, each));
      for (int64_t i = 0; i < chunk.counts.back(); ++i)
        chunk.tokens.push_back(own.begin + begin + i);
    }
  }
  return chunks;
}

}  // namespace

at::Tensor TensorPhases::chunk_losses(TensorLoss& messages, const at::Tensor& x,
                                      const at::Tensor& targets, int64_t chunk_tokens, double scale,
                                      at::Tensor* d_x, at::Tensor* losses) const {
  const TensorPlace& place = state_.stage.tensor;
  const int64_t num_tokens = targets.size(0);
  DISTCA_CHECK(x.size(0) == place.part(num_tokens).size(), "{} rows of {} tokens", x.size(0),
               num_tokens);
  const std::vector<Chunk> chunks = chunks_of(num_tokens, place.size, chunk_tokens);
  std::vector<int64_t> order;
  for (const Chunk& chunk : chunks)
    order.insert(order.end(), chunk.tokens.begin(), chunk.tokens.end());
  const at::Tensor tokens = upload(at::tensor(order, at::kLong), state_.device);
  const at::Tensor aims = targets.index_select(0, tokens);

  const auto wide = x.options().dtype(state_.main_param);
  const at::Tensor sums = at::empty({static_cast<int64_t>(chunks.size())}, wide);
  const at::Tensor in_order = at::empty({num_tokens}, wide);
  if (d_x != nullptr) *d_x = at::empty_like(x);
  int64_t begin = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const Chunk& chunk = chunks[i];
    const auto count = static_cast<int64_t>(chunk.tokens.size());
    // A rank whose rows are all in former chunks has none of this one.
    const int64_t rows = chunk.counts[place.index], first = std::min(chunk.begin, x.size(0));
    const at::Tensor of_chunk =
        chunk_loss(messages, x.narrow(0, first, rows), aims.narrow(0, begin, count), chunk.counts,
                   scale, d_x != nullptr ? d_x->narrow(0, first, rows) : at::Tensor());
    in_order.narrow(0, begin, count).copy_(of_chunk);
    sums[static_cast<int64_t>(i)].copy_(of_chunk.sum());
    begin += count;
  }
  if (losses != nullptr) *losses = at::empty_like(in_order).index_copy_(0, tokens, in_order);
  return sums;
}

/// The losses of a chunk's rows, in rank order. `d_x` is undefined where there is no backward;
/// otherwise it becomes the gradient by x, this rank's rows.
at::Tensor TensorPhases::chunk_loss(TensorLoss& messages, const at::Tensor& x,
                                    const at::Tensor& targets, std::span<const int64_t> counts,
                                    double scale, const at::Tensor& d_x) const {
  const Llama::State& s = state_;
  auto [normed, factors] = norm_rows(x, s.final_norm, s.config.rms_norm_eps, s.compute);
  // This rank's own rows end here, before the logits are made (forecast/tensor_walk.cc).
  const at::Tensor h = messages.gather_rows(std::exchange(normed, at::Tensor()), counts);
  at::Tensor logits = at::linear(h, s.head.used).to(s.main_param);

  const Range own = s.own_tokens();
  const at::Tensor columns = (targets.clamp(own.begin, own.end - 1) - own.begin).unsqueeze(1);
  const at::Tensor elsewhere = (targets < own.begin).logical_or_(targets >= own.end).unsqueeze(1);
  const at::Tensor highest = logits.amax(1, /*keepdim=*/true);
  const at::Tensor aimed = logits.gather(1, columns).masked_fill_(elsewhere, 0);
  at::Tensor exponentials = std::exchange(logits, at::Tensor()).sub_(highest).exp_();
  const at::Tensor all = messages.gather_statistics(
      at::cat({highest, exponentials.sum(1, /*keepdim=*/true), aimed}, 1));

  // Every rank adds the same numbers in the same order, so all have the same losses.
  const at::Tensor highest_of_all = all.select(2, 0).amax(0);
  const at::Tensor sum = (all.select(2, 1) * (all.select(2, 0) - highest_of_all).exp_()).sum(0);
  const at::Tensor no_target = targets == kNoTarget;
  at::Tensor losses =
      (sum.log() + (highest_of_all - all.select(2, 2).sum(0))).masked_fill_(no_target, 0);
  if (!d_x.defined()) return losses;

  // By a logit: scale * (its probability, less 1 if it is the target's).
  const at::Tensor factor =
      (highest.squeeze(1) - highest_of_all).exp_().div_(sum).mul_(scale).masked_fill_(no_target, 0);
  at::Tensor d_logits = std::exchange(exponentials, at::Tensor()).mul_(factor.unsqueeze(1));
  const at::Tensor d_aimed = at::full_like(aimed, scale).masked_fill_(elsewhere, 0);
  d_logits.scatter_(1, columns, d_logits.gather(1, columns).sub_(d_aimed));
  d_logits = d_logits.to(s.compute);
  s.add_product(s.head, d_logits, h);
  const auto [d_rows, d_norm] = norm_rows_backward(
      messages.sum_rows(d_logits.mm(s.head.used), counts), x, s.final_norm, factors);
  s.add(s.final_norm, d_norm);
  d_x.copy_(d_rows);
  return losses;
}

}  // namespace distca
