#include "distca/model/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "distca/base/error.h"

namespace distca {

int64_t Sampler::next(std::span<const float> logits) {
  DISTCA_THROW_IF(!std::ranges::all_of(logits, [](float x) { return std::isfinite(x); }),
                  ErrorKind::kCheckpoint,
                  "the logits are not finite: the weights are damaged, or of a run that diverged");
  const auto largest = std::ranges::max_element(logits);  // the first of equal ones
  if (sampling_.temperature == 0) return largest - logits.begin();
  const auto vocabulary = static_cast<int64_t>(logits.size());
  const int64_t count = sampling_.top_k > 0 ? std::min(sampling_.top_k, vocabulary) : vocabulary;
  order_.resize(logits.size());
  std::iota(order_.begin(), order_.end(), 0);
  if (count < vocabulary || sampling_.top_p < 1) {
    const auto is_likelier = [&](int64_t a, int64_t b) {
      return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
    };
    std::partial_sort(order_.begin(), order_.begin() + count, order_.end(), is_likelier);
    order_.resize(count);
  }
  weights_.clear();
  for (const int64_t id : order_)
    weights_.push_back(std::exp((logits[id] - *largest) / sampling_.temperature));
  double sum = std::reduce(weights_.begin(), weights_.end());
  if (sampling_.top_p < 1) {
    const double share = sampling_.top_p * sum;
    size_t kept = 0;
    for (sum = 0; kept == 0 || (kept < weights_.size() && sum < share); ++kept)
      sum += weights_[kept];
    weights_.resize(kept);
  }
  double left = random_.uniform() * sum;
  for (size_t i = 0; i + 1 < weights_.size(); ++i) {
    left -= weights_[i];
    if (left < 0) return order_[i];
  }
  return order_[weights_.size() - 1];
}

}  // namespace distca
