#include "distca/train/speed_sample.h"

#include <cmath>

namespace distca {

RankSample rank_sample(const OpTimes& times, int64_t tokens, int64_t load) {
  const auto nanoseconds = [](double seconds) { return std::llround(seconds * 1e9); };
  double busy_s = 0;
  for (int kind = 0; kind < kNumOpKinds; ++kind) {
    const auto op = static_cast<OpKind>(kind);
    if (is_of_weights(op)) continue;
    busy_s += times.of(op);
    for (const Pass pass : {Pass::kForward, Pass::kBackward})
      busy_s -= times.of(op, pass, OpPart::kWait);
  }
  const double attention_s = times.of(OpKind::kCoreAttention);
  return {.linear_ns = nanoseconds(busy_s - attention_s),
          .attention_ns = nanoseconds(attention_s),
          .tokens = tokens,
          .load = load,
          .waited_ns = nanoseconds(times.of(OpPart::kWait))};
}

}  // namespace distca
