#include "distca/train/speed_sample.h"

#include <cmath>

namespace distca {

RankSample rank_sample(const OpTimes& times, int64_t tokens, int64_t load) {
  double linear_s = 0;
  for (const OpKind kind : {OpKind::kEmbed, OpKind::kPre, OpKind::kPost, OpKind::kLoss}) {
    linear_s += times.of(kind);
  }
  // What an exchange costs its rank's own core, slow on a slow one: not the waiting.
  for (const OpPart part : {OpPart::kPack, OpPart::kPost, OpPart::kLand})
    linear_s += times.of(part);
  return {.linear_ns = std::llround(linear_s * 1e9),
          .attention_ns = std::llround(times.of(OpKind::kAttend) * 1e9),
          .tokens = tokens,
          .load = load};
}

}  // namespace distca
