#pragma once
// The bars that the CPU attention kernel must reach. Plain values, any thread.

#include <cstdint>
#include <string_view>

#include "bench/figure.h"
#include "distca/base/scalar_type.h"
#include "distca/kernels/cpu/isa.h"

namespace distca::bench {

enum class Pass { kForward, kBackward };
constexpr std::string_view pass_name(Pass pass) {
  return pass == Pass::kForward ? "forward" : "backward";
}

// Bars; 0: shown, not judged.

/// Share of the measured peak of one sequence.
double peak_bar(ScalarType type, kernels::Isa isa, int64_t length);

/// Times PyTorch's rate. Of the instruction set that the kernel would choose on this machine.
struct TorchMachine {
  bool avx512 = false;
  bool amx = false;  // PyTorch multiplies bf16 there
};
double torch_bar(ScalarType type, int64_t length, const TorchMachine& machine);

/// Share of the long sequence's rate. `group`: query heads per key head.
double shard_bar(Pass pass, int64_t queries, int64_t group);

/// Share of the multiply-add loop's gain from more threads.
constexpr double kThreadsBar = 0.95;

}  // namespace distca::bench
