#pragma once
// Functions that tests of the model share. Include <ATen/ATen.h> before this header.

namespace distca {

/// max|a-b| / max|b|, the measure of DESIGN rule 1.
inline double distance(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor wide = b.to(at::kDouble);
  return ((a.to(at::kDouble) - wide).abs().max() / wide.abs().max()).item<double>();
}

}  // namespace distca
