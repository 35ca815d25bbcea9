#pragma once
// Figures of the plans of one batch, over all ranks, and of the time that planning took. They are
// made with the plans and written to metrics.jsonl with the step. A plain value; any thread.

#include <cstdint>
#include <string>
#include <vector>

namespace distca {

/// Sums are over the nano-batches of the batch.
struct PlanFigures {
  int64_t tokens = 0;
  int64_t targets = 0;  // next-token pairs that are trained on
  int64_t pairs = 0;    // (query, key) pairs that the mask allows
  /// How many nano-batches have their Q, K and V dispatched again for backward.
  int64_t num_redispatched = 0;
  std::vector<int64_t> load_before;  // [servers] pairs under plain packing
  std::vector<int64_t> load_after;   // [servers] pairs under the plan
  double imbalance_before = 1;       // max/mean load of workers under plain packing, in pairs
  double imbalance_after = 1;        // of servers under the plan, of load over capacity
  int64_t speeds_from_step = 0;      // of the speeds it was planned with; 0: nothing was measured
  /// What plan.tolerance = auto chose for each nano-batch, as "SCHEDULER TOLERANCE".
  std::vector<std::string> chosen;
  /// [servers] seconds in core attention that plan.profile predicts, forward and backward of all
  /// layers. Empty without a profile.
  std::vector<double> attention_predicted_s;
  /// Seconds that the planning thread took to make and check the plans and this rank's program, and
  /// to read its tokens.
  double plan_s = 0;
  /// The part of plan_s in which programs were checked. Before step 1, all ranks' programs are.
  double validate_s = 0;
  double plan_wait_s = 0;  // seconds that the step waited for its plan
};

}  // namespace distca
