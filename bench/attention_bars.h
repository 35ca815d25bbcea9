#pragma once
// The bars that the CPU attention kernel must reach, and whether it does. Plain values, any thread.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bench/rounds.h"
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

enum class Decision { kShown, kReached, kMissed, kNotDecidable };
std::string_view verdict_name(Decision verdict);  // "" of what is only shown

/// Fewer decide nothing.
constexpr int kLeastRounds = 15;

/// One figure against its bar. `control`: the figure against itself, measured again in the same
/// rounds, so that it holds the noise of everything that the figure is made of.
struct Figure {
  Estimate reached;
  Estimate control;
  double bar = 0;
  int rounds = 0;

  /// Not decidable from fewer than kLeastRounds rounds, where the bar lies in the figure's own
  /// interval, or where the control's interval reaches further from 1 than the figure is from its
  /// bar.
  Decision verdict() const;
};

/// `again`: the same figure's values, of turns of their own in the same rounds.
Figure figure_of(const Rates& values, const Rates& again, double bar);

/// How many of each verdict.
struct Tally {
  int reached = 0;
  int missed = 0;
  int not_decidable = 0;
  int judged() const { return reached + missed + not_decidable; }
  void add(Decision verdict);
};

}  // namespace distca::bench
