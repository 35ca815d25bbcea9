#include "distca/plan/shard_shape.h"

#include <algorithm>
#include <cmath>

namespace distca {

ShardShape cheapest_shard(double item_q, double item_kv, double share, double q_bytes,
                          double kv_bytes) {
  const double ratio = kv_bytes / q_bytes;
  const double area = share * item_q * (2 * item_kv - item_q);  // twice the pairs
  const double below = item_q - item_kv;                        // minus the keys before the item
  const double n_q_best = std::sqrt(area * ratio / (ratio + 2));
  const double n_q_min = item_kv - std::sqrt(std::max(0.0, item_kv * item_kv - area));
  const double n_q_max = below + std::sqrt(below * below + area);
  const double n_q = std::min(std::max(n_q_best, n_q_min), n_q_max);
  return {.n_q = n_q, .n_kv = (area / n_q + n_q) / 2};
}

}  // namespace distca
