#pragma once
// Makes an Engine of the operations of an instruction set. Only for sources that are compiled for
// one instruction set.

#include "distca/kernels/bfloat16.h"
#include "distca/kernels/cpu/backward.h"
#include "distca/kernels/cpu/engine.h"
#include "distca/kernels/cpu/forward.h"

namespace distca::kernels {
namespace {

/// `Simd` is for fp32 inputs, `Bf16Simd` for bf16 inputs. If they are the same, bf16 is widened to
/// fp32 when it is packed.
template <class Simd, class Bf16Simd>
struct EngineFunctions {
  static size_t forward_bytes(const Shape& shape, ScalarType type) {
    return type == ScalarType::kBFloat16 ? forward_scratch_bytes<Bf16Simd>(shape)
                                         : forward_scratch_bytes<Simd>(shape);
  }
  static void forward(const ForwardItem& item, std::byte* scratch) {
    if (item.type == ScalarType::kBFloat16) {
      forward_item<Bf16Simd, BFloat16>(item, scratch);
    } else {
      forward_item<Simd, float>(item, scratch);
    }
  }
  static size_t backward_bytes(const Shape& shape, ScalarType type) {
    return type == ScalarType::kBFloat16 ? backward_scratch_bytes<Bf16Simd, BFloat16>(shape)
                                         : backward_scratch_bytes<Simd, float>(shape);
  }
  static void backward(const BackwardItem& item, std::byte* scratch) {
    if (item.type == ScalarType::kBFloat16) {
      backward_item<Bf16Simd, BFloat16>(item, scratch);
    } else {
      backward_item<Simd, float>(item, scratch);
    }
  }
  // It is a constant, because code that runs at the start of the program would run on every
  // machine.
  static constexpr Engine kEngine{.forward_scratch_bytes = forward_bytes,
                                  .forward = forward,
                                  .backward_scratch_bytes = backward_bytes,
                                  .backward = backward};
};

}  // namespace
}  // namespace distca::kernels
