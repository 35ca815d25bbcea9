#include "bench/step_plans.h"

#include <utility>

#include "distca/plan/choose_tolerance.h"
#include "distca/plan/exchange.h"

namespace distca::bench {
namespace {

PlanRequest request_of(const StepArm& arm, const LlamaConfig& model,
                       const std::vector<int64_t>& lengths, int num_workers) {
  PlanRequest request{.nano_batch = NanoBatch::from_lengths(lengths),
                      .cluster = Cluster::in_place(num_workers),
                      .shape = model.shape().attention,
                      .options = arm.plan};
  request.cluster.max_tokens_per_worker = arm.max_tokens_per_worker;
  return request;
}

}  // namespace

std::vector<Plan> plan_step(const StepArm& arm, const LlamaConfig& model, const BatchLengths& batch,
                            int num_workers) {
  std::vector<Plan> plans;
  for (const std::vector<int64_t>& lengths : arm.one_nano_batch ? merged(batch) : batch) {
    const PlanRequest request = request_of(arm, model, lengths, num_workers);
    plans.push_back(arm.weighed ? choose_tolerance(request, *arm.weighed).plan
                                : make_plan(request));
  }
  return plans;
}

Program arm_program(const StepArm& arm, const LlamaConfig& model, const std::vector<Plan>& plans,
                    int rank, std::shared_ptr<const GradientExchange> gradients) {
  std::vector<NanoPart> parts;
  for (const Plan& plan : plans)
    parts.push_back({attention_exchange(PlanIndex(plan), rank, model, arm.step)});
  return step_program(model, arm.step, /*holds_weights=*/true, ProgramRequest::Kind::kTrain,
                      std::move(parts), std::move(gradients));
}

}  // namespace distca::bench
