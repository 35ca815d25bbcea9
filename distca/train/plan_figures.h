#pragma once
// What the plans of one batch say of all ranks, and what planning took: made with the plans,
// written with the step. Plain value, any thread.

#include <cstdint>
#include <string>
#include <vector>

namespace distca {

struct PlanFigures {
  int64_t tokens = 0;
  int64_t targets = 0;
  int64_t pairs = 0;                 // that the mask allows
  int64_t num_redispatched = 0;      // nano-batches of which Q, K, V travel again for backward
  std::vector<int64_t> load_before;  // [servers] pairs under plain packing
  std::vector<int64_t> load_after;
  double imbalance_before = 1;      // max/mean load of workers under plain packing, by pairs
  double imbalance_after = 1;       // of servers under the plan, of load over capacity
  int64_t speeds_from_step = 0;     // of the speeds it was planned with; 0: nothing was measured
  std::vector<std::string> chosen;  // what plan.tolerance = auto chose: "SCHEDULER TOLERANCE" a
                                    // nano-batch
  /// [servers] time in attention by plan.profile, forward and backward of all layers; empty
  /// without one.
  std::vector<double> attention_predicted_s;
  double plan_s = 0;       // making and checking the plans and this rank's program and reading its
                           // tokens, on a thread of its own
  double validate_s = 0;   // of it, checking programs: before step 1 those of all ranks together
  double plan_wait_s = 0;  // how long the step waited for it
};

}  // namespace distca
