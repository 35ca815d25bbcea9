#include "distca/runtime/aten_merge.h"

#include <ATen/ATen.h>

#include <limits>

#include "distca/base/error.h"
#include "distca/comm/vector_functions.h"
#include "distca/kernels/rows.h"
#include "distca/runtime/tensor_rows.h"

namespace distca {

using kernels::Partial;
using kernels::RowShape;

void aten_merge(const RowShape& shape, ScalarType type, std::span<const Partial> parts,
                const Partial& result, int cuda_device) {
  DISTCA_CHECK(!parts.empty(), "no part to merge");
  const ScalarType accumulator = kernels::accumulator_type(type);
  const auto o_of = [&](const Partial& part) {
    return tensor_of(part.o, part.o_type, shape.tokens, shape.heads, shape.dim, cuda_device);
  };
  const auto lse_of = [&](const Partial& part) {
    return tensor_of(part.lse, accumulator, shape.tokens, shape.heads, 1, cuda_device);
  };
  if (parts.size() == 1) {
    o_of(result).copy_(o_of(parts[0]));
    lse_of(result).copy_(lse_of(parts[0]));
    return;
  }
  settle_vector_functions();
  constexpr double kNoKey = -std::numeric_limits<double>::infinity();
  at::Tensor max = lse_of(parts[0]);
  for (const Partial& part : parts.subspan(1)) max = at::maximum(max, lse_of(part));
  // Rows that no part has a key for: exp(-inf - 0) = 0 instead of exp(-inf + inf).
  const at::Tensor base = max.masked_fill(max == kNoKey, 0);
  at::Tensor total, o;
  for (const Partial& part : parts) {
    const at::Tensor weight = (lse_of(part) - base).exp_();
    const at::Tensor weighted = o_of(part) * weight;
    total = total.defined() ? total.add_(weight) : weight;
    o = o.defined() ? o.add_(weighted) : weighted;
  }
  o_of(result).copy_(o.div_(total.masked_fill(total == 0, 1)));
  lse_of(result).copy_(total.log_().add_(base));
}

}  // namespace distca
