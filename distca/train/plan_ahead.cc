#include "distca/train/plan_ahead.h"

#include <algorithm>
#include <numeric>
#include <system_error>

#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/base/hash.h"
#include "distca/plan/exchange.h"
#include "distca/plan/scheduler.h"
#include "distca/plan/validate.h"
#include "distca/program/validate.h"
#include "distca/train/plan_request.h"

namespace distca {
namespace {

/// By how much those who share a batch's load wait: the sum over nano-batches of the busiest one's
/// time over the sum of the mean.
class Imbalance {
 public:
  void add(const Cluster& cluster, const std::vector<int64_t>& load) {
    const auto total = static_cast<double>(std::accumulate(load.begin(), load.end(), int64_t{0}));
    max_ += total * max_over_mean(cluster, load);
    mean_ += total;
  }
  double value() const { return mean_ > 0 ? max_ / mean_ : 1.0; }

 private:
  double max_ = 0, mean_ = 0;
};

void check_plan(const Plan& plan, const AttentionProfile* profile) {
  ValidateOptions checks = checks_of(find_scheduler(plan.options.scheduler));
  checks.profile = profile;
  const std::vector<std::string> violations = validate(plan, checks);
  DISTCA_CHECK(violations.empty(), "scheduler {} made a wrong plan: {}", plan.options.scheduler,
               violations[0]);
}

/// Buckets of gradients in the programs of all ranks, where they are checked together: so few that
/// the messages of all pairs of workers take little memory. Up to 16 workers they are all that
/// there are. Order and waits of a bucket's operations do not depend on how many there are.
int64_t most_buckets_together(int64_t num_workers) {
  constexpr int64_t kMostMessages = int64_t{1} << 20;
  return std::clamp<int64_t>(kMostMessages / (num_workers * num_workers), 2, kMostBuckets);
}

/// This rank's program, checked; `validate_s`: what that took.
Program checked_program(const Config& config, const std::vector<Plan>& plans, bool redispatched,
                        const StepBatch& batch, int rank, int num_workers,
                        const std::shared_ptr<const GradientExchange>& gradients,
                        double* validate_s) {
  const std::vector<PlanIndex> indices(plans.begin(), plans.end());
  const auto exchange_of = [&](int of_rank, int64_t most_buckets) {
    const bool sums = of_rank < num_workers && batch.kind == ProgramRequest::Kind::kTrain;
    return sums ? gradient_exchange(config.model, step_options(config), of_rank, num_workers,
                                    most_buckets)
                : nullptr;
  };
  const auto program_of = [&](int of_rank, std::shared_ptr<const GradientExchange> of_it) {
    return rank_program(config, indices, redispatched, batch.kind, of_rank, num_workers,
                        std::move(of_it));
  };
  Program program = program_of(rank, gradients ? gradients : exchange_of(rank, kMostBuckets));
  const Stopwatch watch;
  std::vector<std::string> violations = validate(program);
  std::vector<Program> all;
  for (int other = 0; batch.checks_all_ranks && other < num_ranks(config, num_workers); ++other) {
    all.push_back(program_of(other, exchange_of(other, most_buckets_together(num_workers))));
  }
  if (violations.empty() && batch.checks_all_ranks) violations = validate(all);
  DISTCA_CHECK(violations.empty(), "a wrong program was made: {}", violations[0]);
  *validate_s = watch.seconds();
  return program;
}

}  // namespace

PlannedBatch plan_batch(const Config& config, const IndexedDataset& data,
                        const StepBatch& step_batch, int rank, int num_workers,
                        const Speeds& speeds, std::shared_ptr<const GradientExchange> gradients) {
  const Stopwatch watch;
  const Batch& batch = step_batch.batch;
  const auto num_servers = static_cast<size_t>(num_ranks(config, num_workers));
  PlannedBatch planned{.kind = step_batch.kind};
  PlanFigures& figures = planned.figures;
  figures.speeds_from_step = speeds.from_step;
  Imbalance imbalance_before, imbalance_after;
  Fnv1a64 hash;
  if (config.attention_profile) figures.attention_predicted_s.assign(num_servers, 0);
  figures.load_before.assign(num_servers, 0);
  figures.load_after.assign(num_servers, 0);
  planned.work.resize(num_servers);
  const auto [plans, redispatched] = plan_later_batch(config, batch, num_workers, speeds);
  for (size_t nano = 0; nano < batch.size(); ++nano) {
    const NanoBatchSource& source = batch[nano];
    const Plan& plan = plans[nano];
    check_plan(plan, config.attention_profile.get());
    hash.add(plan_hash(plan));
    const std::vector<int64_t> before = packed_load(plan);
    std::vector<int64_t> after;
    for (size_t server = 0; server < num_servers; ++server) {
      const ServerLoad& load = plan.load[server];
      after.push_back(load.pairs);
      figures.load_before[server] += before[server];
      figures.load_after[server] += load.pairs;
      planned.work[server].load += config.attention_profile ? load.time_ns : load.pairs;
      if (!config.attention_profile) continue;
      figures.attention_predicted_s[server] += 1e-9 * static_cast<double>(load.time_ns) *
                                               static_cast<double>(config.model.num_hidden_layers);
    }
    for (int worker = 0; worker < num_workers; ++worker) {
      planned.work[worker].tokens += plan.layout.num_tokens(worker);
    }
    if (config.plan.tolerance.is_auto()) {
      figures.chosen.push_back(fmt::format("{} {:g}", plan.options.scheduler,
                                           static_cast<double>(plan.options.tolerance_ppm) * 1e-6));
    }
    // Plain packing knows no servers but workers.
    imbalance_before.add(Cluster::in_place(num_workers), before);
    imbalance_after.add(plan.cluster, after);
    if (rank < num_workers) {
      planned.input.tokens.push_back(
          load_tokens(data, source, plan.layout.workers[rank], config.model.vocab_size));
    }
    figures.tokens += source.nano_batch.num_tokens();
    figures.targets += source.num_targets();
  }
  figures.num_redispatched = redispatched ? static_cast<int64_t>(batch.size()) : 0;
  planned.input.program = checked_program(config, plans, redispatched, step_batch, rank,
                                          num_workers, gradients, &figures.validate_s);
  figures.pairs = std::accumulate(figures.load_after.begin(), figures.load_after.end(), int64_t{0});
  figures.imbalance_before = imbalance_before.value();
  figures.imbalance_after = imbalance_after.value();
  planned.hash = hash.value();
  figures.plan_s = watch.seconds();
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
