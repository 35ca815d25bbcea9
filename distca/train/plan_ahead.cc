#include "distca/train/plan_ahead.h"

#include <algorithm>
#include <system_error>

#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/forecast/batch_programs.h"
#include "distca/forecast/plan_figures.h"
#include "distca/plan/plain_packing.h"
#include "distca/plan/scheduler.h"
#include "distca/plan/validate.h"
#include "distca/program/validate/validate.h"

namespace distca {
namespace {

ValidateOptions checks_for(const Config& config, const std::string& scheduler) {
  ValidateOptions checks = checks_of(find_scheduler(scheduler));
  checks.profile = config.attention_profile.get();
  return checks;
}

void check_plans(const Config& config, const BatchPlans& plans) {
  std::vector<std::string> violations;
  if (plans.pipeline)
    violations = plans.pipeline->violations(checks_for(config, config.plan.scheduler));
  for (const Plan& plan : plans.plans) {  // plan.tolerance = auto may have chosen other schedulers
    if (violations.empty()) violations = validate(plan, checks_for(config, plan.options.scheduler));
  }
  DISTCA_CHECK(violations.empty(), "scheduler {} made a wrong plan: {}", config.plan.scheduler,
               violations[0]);
}

/// The tokens of a worker, by nano-batch.
std::vector<LocalTokens> tokens_of(const Config& config, const DataBlend& data, const Batch& batch,
                                   const BatchPlans& plans, int rank, int num_workers) {
  std::vector<LocalTokens> tokens;
  if (rank >= num_workers) return tokens;
  for (size_t nano = 0; nano < batch.size(); ++nano) {
    const std::vector<Segment>& segments =
        plans.pipeline
            ? plans.pipeline->request().homes[nano].workers[plans.pipeline->grid().replica(rank)]
            : plans.plan(nano).layout.workers[rank];
    tokens.push_back(load_tokens(config, data, batch[nano], segments));
  }
  return tokens;
}

/// Buckets of gradients in the programs of all ranks, where they are checked together: so few that
/// the messages of all pairs of workers take little memory. Up to 16 workers they are all that
/// there are. Order and waits of a bucket's operations do not depend on how many there are.
int64_t most_buckets_together(int64_t num_workers) {
  constexpr int64_t kMostMessages = int64_t{1} << 20;
  return std::clamp<int64_t>(kMostMessages / (num_workers * num_workers), 2, kMostBuckets);
}

/// This rank's program, checked; `validate_s`: what that took.
Program checked_program(const Config& config, const BatchPlans& plans, const StepBatch& batch,
                        int rank, int num_workers,
                        const std::shared_ptr<const GradientExchange>& gradients,
                        double* validate_s) {
  const BatchPrograms programs(config, plans, batch.kind, num_workers);
  const bool sums = gradients && batch.kind == ProgramRequest::Kind::kTrain;
  Program program = sums ? programs.of(rank, gradients) : programs.of(rank);
  const Stopwatch watch;
  std::vector<std::string> violations = validate(program);
  std::vector<Program> all;
  for (int other = 0; batch.checks_all_ranks && other < num_ranks(config, num_workers); ++other)
    all.push_back(programs.of(other, most_buckets_together(num_workers)));
  if (violations.empty() && batch.checks_all_ranks) violations = validate(all);
  DISTCA_CHECK(violations.empty(), "a wrong program was made: {}", violations[0]);
  *validate_s = watch.seconds();
  return program;
}

}  // namespace

PlannedBatch plan_batch(const Config& config, const DataBlend& data, const StepBatch& step_batch,
                        int rank, int num_workers, const Speeds& speeds,
                        std::shared_ptr<const GradientExchange> gradients) {
  const Stopwatch watch;
  const Batch& batch = step_batch.batch;
  const BatchPlans plans = plan_later_batch(config, batch, num_workers, speeds,
                                            step_batch.kind == ProgramRequest::Kind::kTrain);
  check_plans(config, plans);
  PlannedBatch planned{.kind = step_batch.kind};
  planned.figures.hash = plans_hash(plans);
  planned.figures.speeds_from_step = speeds.from_step;
  add_plan_figures(config, batch, plans, num_workers, &planned.figures, &planned.work);
  const bool trains = step_batch.kind == ProgramRequest::Kind::kTrain;
  if (trains && config.plan.scheduler != "local" && plans.num_windows == 1) {
    planned.figures.packed =
        packed_work(plans.plans, config.attention_profile, config.pairs_nano_batches() ? 2 : 1);
  }
  planned.input.tokens = tokens_of(config, data, batch, plans, rank, num_workers);
  if (rank < num_workers / config.parallel.pipeline_model_parallel_size) {  // first stage only
    for (const LocalTokens& tokens : planned.input.tokens) {
      planned.bad_tokens += tokens.bad_tokens;
      planned.targets_left_out += tokens.targets_left_out;
    }
  }
  planned.input.program = checked_program(config, plans, step_batch, rank, num_workers, gradients,
                                          &planned.figures.validate_s);
  if (const int64_t of_node = config.cluster.ranks_per_node; of_node > 0)
    planned.bytes_between_nodes = bytes_between_nodes(planned.input.program, rank, of_node);
  planned.figures.plan_s = watch.seconds();
  return planned;
}

PlanAhead::PlanAhead(PlanNext plan_next, Speeds speeds) : plan_next_(std::move(plan_next)) {
  start(std::move(speeds));
}

void PlanAhead::start(Speeds speeds) {
  try {
    pending_ = std::async(std::launch::async,
                          [this, speeds = std::move(speeds)] { return plan_next_(speeds); });
  } catch (const std::system_error& error) {
    throw Error(ErrorKind::kIo, "cannot start the planning thread: {}", error.what());
  }
}

PlannedBatch PlanAhead::next(Speeds speeds) {
  const Stopwatch watch;
  std::optional<PlannedBatch> planned = pending_.get();
  DISTCA_CHECK(planned.has_value(), "no batch is left");
  planned->figures.plan_wait_s = watch.seconds();
  start(std::move(speeds));
  return *std::move(planned);
}

}  // namespace distca
