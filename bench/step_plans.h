#pragma once
// Ways to plan and play one training step, to be compared on the same batches: an arm is a
// scheduler, its options and an overlap mode. Needs no PyTorch. Plain values; any thread may call
// the functions.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/step_figures.h"
#include "distca/forecast/step_program.h"
#include "distca/plan/layer_time.h"
#include "distca/plan/plan.h"

namespace distca::bench {

struct StepArm {
  std::string name;
  PlanOptions plan;
  /// plan.tolerance = auto: chosen by predicted time (plan/choose_tolerance.h), not by `plan`.
  std::optional<LayerTimeOptions> weighed = {};
  StepOptions step;
  bool one_nano_batch = false;        // a batch's documents are planned and played together
  int64_t max_tokens_per_worker = 0;  // cap for one nano-batch. 0 means no cap.
};

/// [nano-batch]. Throws Error(kPlan) where the scheduler refuses one.
std::vector<Plan> plan_step(const StepArm& arm, const LlamaConfig& model, const BatchLengths& batch,
                            int num_workers);

/// The program of one rank of an arm's step; the workers are all ranks.
Program arm_program(const StepArm& arm, const LlamaConfig& model, const std::vector<Plan>& plans,
                    int rank, std::shared_ptr<const GradientExchange> gradients);

}  // namespace distca::bench
