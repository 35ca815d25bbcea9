#pragma once
// Plays a program for real: one operation after another in program order (schedule `blocking`),
// timing each kind. What an operation does is the caller's; a new schedule changes the program, not
// the callers. Thread rule: one executor a rank.

#include <array>

#include "distca/program/program.h"

namespace distca {

/// Does one operation; blocking.
class OpPlayer {
 public:
  virtual ~OpPlayer() = default;
  virtual void play(const Op& op) = 0;
};

/// Seconds spent, [kind][pass].
struct OpTimes {
  std::array<std::array<double, 2>, kNumOpKinds> seconds{};            // elapsed
  std::array<std::array<double, 2>, kNumOpKinds> processor_seconds{};  // of the playing thread

  double of(OpKind kind, Pass pass) const { return seconds[int(kind)][int(pass)]; }
  double of(OpKind kind) const { return of(kind, Pass::kForward) + of(kind, Pass::kBackward); }
  double processor_of(OpKind kind) const {
    return processor_seconds[int(kind)][int(Pass::kForward)] +
           processor_seconds[int(kind)][int(Pass::kBackward)];
  }
};

/// Plays every operation once, in order; adds to `times`.
void play(const Program& program, OpPlayer& player, OpTimes* times);

}  // namespace distca
