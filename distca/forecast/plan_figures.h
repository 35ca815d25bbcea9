#pragma once
// Figures of a batch's plans: load, tokens and predicted time, for metrics.jsonl and for speeds.
// Any thread may call the functions.

#include <cstdint>
#include <string>
#include <vector>

#include "distca/batch/batch_stream.h"
#include "distca/config/config.h"
#include "distca/cost/speed_meter.h"
#include "distca/forecast/plan_request.h"

namespace distca {

/// Figures of the plans of one batch, over all ranks and summed over its nano-batches, and of the
/// time that planning took. They are made with the plans.
struct PlanFigures {
  uint64_t hash = 0;  // plans_hash() of the plans; ranks compare it before use
  int64_t tokens = 0;
  int64_t targets = 0;     // next-token pairs that are trained on
  int64_t bad_tokens = 0;  // tokens whose ids the model does not have (data.bad_tokens)
  int64_t pairs = 0;       // (query, key) pairs that the masks allow, of one layer on average
  /// How many nano-batches have their Q, K and V dispatched again for backward.
  int64_t num_redispatched = 0;
  // In a pipeline, loads are those of forward, all layer steps.
  std::vector<int64_t> load_before;  // [servers] pairs under plain packing
  std::vector<int64_t> load_after;   // [servers] pairs under the plan
  // In a pipeline both are summed over the exchanges of forward.
  double imbalance_before = 1;   // max/mean load of workers under plain packing, in pairs
  double imbalance_after = 1;    // max/mean of servers under the plan, load over capacity
  int64_t speeds_from_step = 0;  // from_step of the speeds it was planned with; 0 if none
  /// The choice of plan.tolerance = auto for each nano-batch, as "SCHEDULER TOLERANCE".
  std::vector<std::string> chosen;
  /// [servers] seconds in core attention that plan.profile predicts, forward and backward of all
  /// layers. Empty without a profile.
  std::vector<double> attention_predicted_s;
  /// Seconds that the planning thread took to make and check the plans and this rank's program, and
  /// to read its tokens.
  double plan_s = 0;
  /// The part of plan_s in which programs were checked. Before step 1, the programs of all ranks
  /// are checked, and later only this rank's.
  double validate_s = 0;
  double plan_wait_s = 0;  // seconds that the step waited for its plan
};

/// Fills the fields of `figures` that follow from plans, and returns the work of each server
/// without times. Without a pipeline, loads are those of one layer, summed over nano-batches; where
/// windows differ by layer, those of the mean of all layers, rounded down for each window. In a
/// pipeline, ranks have unequal layers, so loads are those of all layer steps of forward; before
/// balancing, each stage computes its own attention.
std::vector<RankSample> add_plan_figures(const Config& config, const Batch& batch,
                                         const BatchPlans& plans, int num_workers,
                                         PlanFigures* figures);

}  // namespace distca
