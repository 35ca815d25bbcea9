#include "distca/train/speed_sample.h"

#include <cmath>

namespace distca {

RankSample rank_sample(const OpTimes& times, int64_t tokens, int64_t load) {
  double busy_s = 0;
  for (int kind = 0; kind < kNumOpKinds; ++kind) {
    const auto op = static_cast<OpKind>(kind);
    // What all workers do alike, whatever they were given.
    if (op >= OpKind::kGradReduce) continue;
    busy_s += times.of(op);
    for (const Pass pass : {Pass::kForward, Pass::kBackward})
      busy_s -= times.of(op, pass, OpPart::kWait);
  }
  const double attention_s = times.of(OpKind::kCoreAttention);
  return {.linear_ns = std::llround((busy_s - attention_s) * 1e9),
          .attention_ns = std::llround(attention_s * 1e9),
          .tokens = tokens,
          .load = load};
}

}  // namespace distca
