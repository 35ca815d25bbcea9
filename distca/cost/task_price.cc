#include "distca/cost/task_price.h"

namespace distca {

int64_t TaskPrice::operator()(const Range& q, const Range& kv, MaskType mask) const {
  return attention_pairs(q, kv, mask, window_left_);
}

}  // namespace distca
