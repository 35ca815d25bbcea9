#include "distca/api/inside/shape.h"

#include "distca/base/error.h"

namespace distca::api {

AttentionShape attention_shape(const Shape& shape, int64_t window_left) {
  const int64_t head_dim_v = shape.head_dim_v == 0 ? shape.head_dim : shape.head_dim_v;
  if (shape.num_kv_heads < 1 || shape.num_heads < 1 || shape.num_heads % shape.num_kv_heads != 0) {
    throw Error(ErrorKind::kPlan,
                "num_heads = {}, num_kv_heads = {}: the first is a multiple of the second",
                shape.num_heads, shape.num_kv_heads);
  }
  for (const int64_t dim : {shape.head_dim, head_dim_v}) {
    if (dim < 1 || dim % 8 != 0)
      throw Error(ErrorKind::kPlan, "head_dim = {}: a multiple of 8", dim);
  }
  if (window_left < -1)
    throw Error(ErrorKind::kPlan, "window_left = {}: -1, for all, or more", window_left);
  return {.num_heads = shape.num_heads,
          .num_kv_heads = shape.num_kv_heads,
          .head_dim_qk = shape.head_dim,
          .head_dim_v = head_dim_v,
          .element_bytes = element_bytes(shape.dtype),
          .window_left = window_left};
}

}  // namespace distca::api
