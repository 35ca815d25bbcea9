#include "distca/train/plan_ahead.h"

#include <system_error>

#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/config/run_grid.h"
#include "distca/forecast/batch_programs.h"
#include "distca/forecast/plan_request.h"
#include "distca/program/validate/validate.h"

namespace distca {
namespace {

/// The tokens of a server, all of which each of its ranks has, by nano-batch.
std::vector<LocalTokens> tokens_of(const Config& config, const DataBlend& data, const Batch& batch,
                                   const BatchPlans& plans, const RunGrid& run, int server) {
  std::vector<LocalTokens> tokens;
  if (run.grid.stage(server) < 0) return tokens;
  for (size_t nano = 0; nano < batch.size(); ++nano) {
    const std::vector<Segment>& segments =
        plans.pipeline ? plans.pipeline->request().homes[nano].workers[run.grid.replica(server)]
                       : plans.plan(nano).layout.workers[server];
    tokens.push_back(load_tokens(config, data, batch[nano], segments));
  }
  return tokens;
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
  planned.figures.speeds_from_step = speeds.from_step;
  const RunGrid run = run_grid(config, num_workers);
  const int server = run.server_of(rank);
  planned.work = add_plan_figures(config, batch, plans, num_workers, &planned.figures)[server];
  planned.input.tokens = tokens_of(config, data, batch, plans, run, server);
  if (run.grid.stage(server) == 0 && run.tensor_index(rank) == 0) {
    for (const LocalTokens& tokens : planned.input.tokens) {
      planned.bad_tokens += tokens.bad_tokens;
      planned.targets_left_out += tokens.targets_left_out;
    }
  }
  const BatchPrograms programs(config, plans, step_batch.kind, num_workers);
  const bool sums = gradients && step_batch.kind == ProgramRequest::Kind::kTrain;
  planned.input.program = sums ? programs.of(rank, gradients) : programs.of(rank);
  const Stopwatch validating;
  std::vector<std::string> violations = validate(planned.input.program);
  if (violations.empty() && step_batch.checks_all_ranks) violations = programs.violations();
  DISTCA_CHECK(violations.empty(), "a wrong program was made: {}", violations[0]);
  planned.figures.validate_s = validating.seconds();
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
