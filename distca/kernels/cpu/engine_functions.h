#pragma once
// Makes Engines of the operations of an instruction set. Only for sources that are compiled for
// one instruction set.

#include "distca/kernels/bfloat16.h"
#include "distca/kernels/cpu/backward.h"
#include "distca/kernels/cpu/burst.h"
#include "distca/kernels/cpu/engine.h"
#include "distca/kernels/cpu/forward.h"

namespace distca::kernels {
namespace {

template <class Simd, class Number>
constexpr Engine kEngine{.forward_scratch_bytes = forward_scratch_bytes<Simd>,
                         .forward = forward_item<Simd, Number>,
                         .backward_scratch_bytes = backward_scratch_bytes<Simd, Number>,
                         .backward = backward_item<Simd, Number>,
                         .burst = burst_of<Simd>()};

/// `Simd` is for fp32 inputs, `Bf16Simd` for bf16 inputs. If they are the same, bf16 is widened to
/// fp32 when it is packed. It is a constant, because code that runs at the start of the program
/// would run on every machine.
template <class Simd, class Bf16Simd>
constexpr Engines kEngines{kEngine<Simd, float>, kEngine<Bf16Simd, BFloat16>};

}  // namespace
}  // namespace distca::kernels
