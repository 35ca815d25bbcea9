#include "distca/kernels/cpu/engine.h"
#include "distca/kernels/cpu/forward.h"
#include "distca/kernels/cpu/simd_avx512.h"

namespace distca::kernels {
namespace {

size_t scratch_for_forward(const Shape& shape, ScalarType /*type*/) {
  return forward_scratch_bytes<Avx512Fp32>(shape);
}

void forward(const ForwardItem& item, std::byte* scratch) {
  if (item.type == ScalarType::kBFloat16) {
    forward_item<Avx512Fp32, BFloat16>(item, scratch);
  } else {
    forward_item<Avx512Fp32, float>(item, scratch);
  }
}

}  // namespace

const Engine kAvx512Engine{.forward_scratch_bytes = scratch_for_forward, .forward = forward};

}  // namespace distca::kernels
