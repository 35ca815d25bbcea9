#pragma once
// Errors of a run that ends badly though no rank is lost: its numbers went wrong, or its replicas
// drifted apart. Any thread may call these functions.

#include <cstdint>
#include <string_view>
#include <vector>

#include "distca/base/error.h"
#include "distca/config/config.h"
#include "distca/config/run_grid.h"
#include "distca/train/same_weights.h"
#include "distca/train/step_guard.h"

namespace distca {

/// `what` is not finite, and what to do. `saved` is what is to be said about the state.
Error diverged(const Config& config, std::string_view what, std::string_view saved = "");

/// Throws if the trained weights are not finite: no step has looked at what the last update made.
void check_last_update(const std::vector<at::Tensor>& weights, const Config& config);

/// A bad step ends the run. `num_skipped` steps in a row before it were skipped; `all_bad`: this
/// start went on from a checkpoint, and none of its steps was good; `saved` is what is to be said
/// about the state before it.
Error bad_step(const Config& config, int64_t step, const StepOutcome& outcome, int64_t num_skipped,
               bool all_bad, std::string_view saved);

/// Throws if ranks (`others`) hold other weights before the first step than they should.
void check_same_start(const OtherRanks& others, const RunGrid& run, bool resumed);
/// Throws if they do so after the last step.
void check_same_end(const OtherRanks& others, const RunGrid& run, const Config& config);

/// Throws if the validation loss after the last step, whose weights are saved, is not finite.
void check_last_validation(double loss, const Config& config);

}  // namespace distca
