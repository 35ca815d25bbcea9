#include "distca/train/same_result.h"

#include <ATen/ATen.h>

#include <cmath>

#include "distca/comm/host_read.h"

namespace distca {

double difference(const at::Tensor& a, const at::Tensor& b) {
  const double scale = host_number(b.abs().max());
  const double gap = host_number((a.to(at::kDouble) - b.to(at::kDouble)).abs().max());
  return scale == 0 ? gap : gap / scale;
}

/// Along the longest chain a value is rounded about n = 50 times a layer (15 operations a layer and
/// a few around them, forward, and twice that backward); roundings of relative size u at random add
/// up to sqrt(n) u, and among 1e4 elements the largest lies 4 standard deviations out.
double format_bound(ScalarType dtype, int64_t num_layers, int64_t num_rows) {
  constexpr double kRoundingsOfLayer = 50, kDeviations = 4;
  if (dtype == ScalarType::kFloat64) return 1e-10;
  // Weight gradients sum over all rows, in another order: in fp32 for either format.
  const double fp32 = 0x1p-24, u = dtype == ScalarType::kFloat32 ? fp32 : 0x1p-8;
  return kDeviations * (std::sqrt(kRoundingsOfLayer * static_cast<double>(num_layers)) * u +
                        std::sqrt(static_cast<double>(num_rows)) * fp32);
}

}  // namespace distca
