#include "distca/runtime/aten_merge.h"

#include <ATen/ATen.h>

#include <limits>
#include <vector>

#include "distca/base/error.h"

namespace distca {

void aten_merge(std::span<const AtenPartial> parts, const AtenPartial& result) {
  DISTCA_CHECK(!parts.empty(), "no part to merge");
  if (parts.size() == 1) {
    result.o.copy_(parts[0].o);
    result.lse.copy_(parts[0].lse);
    return;
  }
  constexpr double kNoKey = -std::numeric_limits<double>::infinity();
  at::Tensor max = parts[0].lse;
  for (const AtenPartial& part : parts.subspan(1)) max = at::maximum(max, part.lse);
  // Rows that no part has a key for: exp(-inf - 0) = 0 instead of exp(-inf + inf).
  const at::Tensor base = max.masked_fill(max == kNoKey, 0);
  at::Tensor total, o;
  for (const AtenPartial& part : parts) {
    const at::Tensor weight = (part.lse - base).exp_();
    const at::Tensor weighted = part.o * weight;
    total = total.defined() ? total.add_(weight) : weight;
    o = o.defined() ? o.add_(weighted) : weighted;
  }
  result.o.copy_(o.div_(total.masked_fill(total == 0, 1)));
  result.lse.copy_(total.log_().add_(base));
}

}  // namespace distca
