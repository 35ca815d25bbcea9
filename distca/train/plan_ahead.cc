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

namespace distca {
namespace {

double max_over_mean_of_sums(const std::vector<std::vector<int64_t>>& loads) {
  double max_sum = 0, mean_sum = 0;
  for (const std::vector<int64_t>& load : loads) {
    max_sum += static_cast<double>(*std::max_element(load.begin(), load.end()));
    mean_sum += static_cast<double>(std::accumulate(load.begin(), load.end(), int64_t{0})) /
                static_cast<double>(load.size());
  }
  return mean_sum > 0 ? max_sum / mean_sum : 1.0;
}

std::vector<int64_t> sum(const std::vector<std::vector<int64_t>>& loads, size_t servers) {
  std::vector<int64_t> result(servers, 0);
  for (const std::vector<int64_t>& load : loads) {
    for (size_t server = 0; server < servers; ++server) result[server] += load[server];
  }
  return result;
}

}  // namespace

PlannedBatch plan_batch(const Config& config, const IndexedDataset& data, const Batch& batch,
                        int rank, int num_workers) {
  const Stopwatch watch;
  ValidateOptions checks = checks_of(find_scheduler(config.plan.scheduler));
  checks.profile = config.attention_profile.get();
  PlannedBatch planned;
  std::vector<std::vector<int64_t>> before, after;
  Fnv1a64 hash;
  if (config.attention_profile) planned.attention_s.assign(num_workers, 0);
  for (const NanoBatchSource& source : batch) {
    const Plan plan = make_plan(plan_request(config, source.nano_batch, num_workers));
    const std::vector<std::string> violations = validate(plan, checks);
    DISTCA_CHECK(violations.empty(), "scheduler {} made a wrong plan: {}", plan.options.scheduler,
                 violations[0]);
    hash.add(plan_hash(plan));
    before.push_back(packed_load(plan));
    after.emplace_back();
    for (size_t server = 0; server < plan.load.size(); ++server) {
      after.back().push_back(plan.load[server].pairs);
      if (planned.attention_s.empty()) continue;
      planned.attention_s[server] += 1e-9 * static_cast<double>(plan.load[server].time_ns) *
                                     static_cast<double>(config.model.num_hidden_layers);
    }
    planned.inputs.push_back({.exchange = PlanIndex(plan).exchange(rank),
                              .tokens = load_tokens(data, source, plan.layout.workers[rank])});
    planned.num_tokens += source.nano_batch.num_tokens();
    planned.num_targets += source.num_targets();
  }
  planned.load_before = sum(before, num_workers);
  planned.load_after = sum(after, num_workers);
  planned.pairs = std::accumulate(planned.load_after.begin(), planned.load_after.end(), int64_t{0});
  planned.imbalance_before = max_over_mean_of_sums(before);
  planned.imbalance_after = max_over_mean_of_sums(after);
  planned.hash = hash.value();
  planned.plan_s = watch.seconds();
  return planned;
}

PlanAhead::PlanAhead(NextBatch next_batch, PlanBatch plan)
    : next_batch_(std::move(next_batch)), plan_(std::move(plan)) {
  start();
}

void PlanAhead::start() {
  try {
    pending_ = std::async(std::launch::async, [this]() -> std::optional<PlannedBatch> {
      const std::optional<Batch> batch = next_batch_();
      if (!batch) return std::nullopt;
      return plan_(*batch);
    });
  } catch (const std::system_error& error) {
    throw Error(ErrorKind::kIo, "cannot start the planning thread: {}", error.what());
  }
}

PlannedBatch PlanAhead::next() {
  const Stopwatch watch;
  std::optional<PlannedBatch> planned = pending_.get();
  DISTCA_CHECK(planned.has_value(), "no batch is left");
  planned->wait_s = watch.seconds();
  start();
  return *std::move(planned);
}

}  // namespace distca
