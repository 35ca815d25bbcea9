#pragma once
// Looks for steps that must not reach the weights: the loss or the gradient norm is not finite, or
// is many times what it was in the steps before (train.spike_factor).
//
//     const StepOutcome outcome = guard.check(loss, grad_norm);
//     if (outcome.good()) { guard.accept(loss, grad_norm); optimizer.update(lr); }
//
// It is a function of numbers that all workers share, so all decide alike. Thread rule: one thread.

#include <cstdint>
#include <string>
#include <vector>

#include "distca/base/json_field.h"

namespace distca {

/// Says whether a step may reach the weights, and if not, why. It is a plain value, which ranks
/// send each other.
struct StepOutcome {
  enum class Kind : int32_t {
    kGood,
    kNormNotFinite,
    kLossNotFinite,
    kNormSpike,
    kLossSpike
  } kind = Kind::kGood;
  double value = 0;   // the norm or loss
  double median = 0;  // median of the last good steps, set for a spike

  bool good() const { return kind == Kind::kGood; }
  /// Says what is wrong with a bad step, as in "the gradient norm is not finite".
  std::string describe() const;
};

class StepGuard {
 public:
  /// A value spikes if it is above `spike_factor` times the median of the last kWindow good steps.
  /// 0 means that only values that are not finite are bad. The first kFirst steps are never spikes.
  explicit StepGuard(double spike_factor) : spike_factor_(spike_factor) {}

  /// `loss` in nats a target.
  StepOutcome check(double loss, double grad_norm) const;
  /// Adds a good step.
  void accept(double loss, double grad_norm);

  /// The state that a checkpoint keeps.
  Json state() const;
  void restore(const JsonField& state);

  static constexpr size_t kWindow = 100;
  static constexpr size_t kFirst = 20;

 private:
  double spike_factor_;
  std::vector<double> losses_, norms_;  // values of the last good steps
};

}  // namespace distca
