#include "distca/forecast/plan_request.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/base/hash.h"
#include "distca/config/run_grid.h"
#include "distca/cost/stage_layers.h"
#include "distca/cost/task_price.h"
#include "distca/forecast/plan_pipeline.h"
#include "distca/plan/accounting.h"
#include "distca/plan/choose_tolerance.h"
#include "distca/plan/scheduler.h"
#include "distca/plan/validate.h"
#include "distca/program/overlap.h"

namespace distca {
namespace {

bool redispatches(const Config& config) {
  return config.exchange.keys == Config::Exchange::Keys::kRedispatch;
}

std::vector<int64_t> capacities(const Config& config, const PlanRequest& request,
                                int cluster_workers, const Speeds& speeds) {
  std::vector<int64_t> given = checked_capacities(config, cluster_workers);
  if (!given.empty()) return given;
  const int num_servers = distca::num_servers(config, cluster_workers);
  const TaskPrice price(request.shape, request.profile.get());
  const int64_t load = load_of(request.nano_batch, price);
  const Speeds known = config.servers.reweight && !speeds.ranks.empty()
                           ? speeds
                           : stated_speeds(config, num_servers, redispatches(config));
  const int64_t tokens = request.nano_batch.num_tokens() / cluster_workers;
  return even_capacities(
      work_of_step(known, cluster_workers, num_servers, config.servers.in_place, tokens),
      config.pairs_nano_batches() ? BalanceTarget::kWhole : BalanceTarget::kAttention, load);
}

/// `redispatched`: servers keep no keys for backward; they get them again. Otherwise they keep
/// those of the layers that have this window.
MemoryPrice memory_price(const Config& config, bool redispatched, size_t window) {
  const ModelShape shape = config.rank_shape();
  MemoryPrice price = llama_memory(shape, config.train.recompute, redispatched);
  const int64_t layers = redispatched ? 0 : config.model.num_layers_of_windows()[window];
  price.kept_query_bytes = layers * shape.attention.q_token_bytes();
  price.kept_key_bytes = layers * shape.attention.kv_token_bytes();
  return price;
}

/// Returns how many nano-batches a rank holds at a time.
int64_t nano_batches_at_once(const Config& config) { return config.pairs_nano_batches() ? 2 : 1; }

/// Bytes on one rank, each the most of any nano-batch.
struct RankMemory {
  int64_t activations = 0;
  int64_t kept = 0;
};

int64_t activation_bytes(const Plan& plan, size_t rank) {
  if (rank >= plan.layout.workers.size()) return 0;
  return plan.layout.num_tokens(static_cast<int>(rank)) * plan.cluster.memory.token_bytes;
}

std::vector<RankMemory> batch_memory(const std::vector<Plan>& plans) {
  std::vector<RankMemory> memory(plans[0].load.size());
  for (const Plan& plan : plans) {
    for (size_t rank = 0; rank < memory.size(); ++rank) {
      const int64_t activations = activation_bytes(plan, rank);
      memory[rank].activations = std::max(memory[rank].activations, activations);
      memory[rank].kept = std::max(memory[rank].kept, plan.load[rank].memory_bytes - activations);
    }
  }
  return memory;
}

int64_t most_bytes(const std::vector<RankMemory>& memory) {
  int64_t most = 0;
  for (const RankMemory& rank : memory) most = std::max(most, rank.activations + rank.kept);
  return most;
}

/// Returns how many bytes a nano-batch may take on a rank, so that its kept keys fit in addition to
/// the activations of any other nano-batch.
int64_t room_beside(const std::vector<RankMemory>& memory, const Plan& plan, int64_t cap) {
  int64_t more = 0;
  for (size_t rank = 0; rank < memory.size(); ++rank) {
    more = std::max(more, memory[rank].activations - activation_bytes(plan, rank));
  }
  return std::max<int64_t>(1, cap - more);  // 0 would be no cap
}

}  // namespace

Speeds stated_speeds(const Config& config, int num_servers, bool redispatched) {
  const ModelShape layers = config.rank_shape();
  return assumed_speeds(layers, num_servers, config.attention_profile.get(),
                        products_again(layers, config.train.recompute, redispatched));
}

std::vector<int64_t> checked_capacities(const Config& config, int cluster_workers) {
  std::vector<int64_t> given = config.servers.capacity;
  const int servers = num_servers(config, cluster_workers), ranks = config.tensor_ranks();
  DISTCA_THROW_IF(!given.empty() && given.size() != static_cast<size_t>(servers),
                  ErrorKind::kConfig,
                  "servers.capacity = {}: {} numbers for {} servers{} ({} {}, then {} dedicated)",
                  fmt::join(given, ","), given.size(), servers,
                  ranks > 1 ? fmt::format(", each of {} ranks", ranks) : "", cluster_workers,
                  ranks > 1 ? "with tokens" : "workers", servers - cluster_workers);
  return given;
}

LayerTimeOptions layer_time_options(const Config& config, int cluster_workers, const Speeds& speeds,
                                    bool redispatched) {
  const ModelShape layers = config.rank_shape();
  LayerTimeOptions options;
  options.speeds = fill_in_speeds(
      speeds, stated_speeds(config, num_servers(config, cluster_workers), redispatched));
  if (config.plan.bandwidth_mb_per_s > 0) {
    options.speeds.bytes_per_us = config.plan.bandwidth_mb_per_s;
  }
  options.overlap_model = overlap_model_of(config.train.overlap, config.batch.nano_batches);
  options.layers = layers.num_layers;
  options.redispatched = redispatched;
  options.wide_gradients = config.exchange.wide_gradients;
  return options;
}

PlanRequest plan_request(const Config& config, const NanoBatch& nano_batch, int cluster_workers,
                         const Speeds& speeds, size_t window) {
  PlanRequest request;
  request.nano_batch = nano_batch;
  request.shape = config.rank_shape(window).attention;
  request.options = config.plan;
  if (const std::optional<double> share = config.plan.tolerance.share)
    request.options.tolerance_ppm = std::llround(*share * 1e6);
  request.profile = config.attention_profile;
  Cluster& cluster = request.cluster;
  cluster.num_workers = cluster_workers;
  cluster.capacity = capacities(config, request, cluster_workers, speeds);
  cluster.ranks_per_node = static_cast<int>(config.cluster.ranks_per_node) / config.tensor_ranks();
  if (cluster.ranks_per_node > 0)
    cluster.inside.bytes_per_us = kInsideOverBetween * cluster.between.bytes_per_us;
  cluster.max_tokens_per_worker = config.plan.max_tokens_per_worker;
  cluster.memory = memory_price(config, redispatches(config), window);
  cluster.max_memory_bytes =
      std::llround(config.plan.max_memory_gib * 0x1p30) / nano_batches_at_once(config);
  return request;
}

namespace {

/// [requests] Plans of neighbouring requests with the windows of one nano-batch share a layout.
std::vector<Plan> plan_all(const Config& config, const std::vector<PlanRequest>& requests,
                           size_t num_windows, const LayerTimeOptions& times) {
  std::vector<Plan> plans;
  for (const PlanRequest& request : requests) {
    if (const size_t window = plans.size() % num_windows; window > 0) {
      plans.push_back(make_plan(request, plans[plans.size() - window].layout));
      continue;
    }
    plans.push_back(config.plan.tolerance.is_auto ? choose_tolerance(request, times).plan
                                                  : make_plan(request));
  }
  return plans;
}

/// The error that refuses a batch of which a rank would hold `bytes` of each nano-batch.
Error beyond_cap(const Config& config, bool redispatched, int64_t bytes, const char* of_what) {
  const auto all = static_cast<double>(bytes * nano_batches_at_once(config));
  return {ErrorKind::kPlan,
          "plan.max_memory_gib = {} with exchange.keys = {}: a rank would hold {:.3g} GiB{}; use "
          "more workers, a smaller batch.nano_batch_tokens, train.recompute = full or a larger cap",
          config.plan.max_memory_gib,
          redispatched ? "redispatch" : "keep",
          all / 0x1p30,
          of_what};
}

/// Plans a batch where there is one stage.
BatchPlans plan_one_stage(const Config& config, const Batch& batch, int cluster_workers,
                          const Speeds& speeds) {
  const size_t num_windows = config.model.windows().size();
  std::vector<PlanRequest> requests;
  for (const NanoBatchSource& source : batch) {
    for (size_t window = 0; window < num_windows; ++window)
      requests.push_back(plan_request(config, source.nano_batch, cluster_workers, speeds, window));
  }
  const bool is_given = config.plan.max_memory_gib > 0;
  const int64_t cap = requests.empty() ? 0
                      : is_given       ? requests[0].cluster.max_memory_bytes
                                       : config.device_cap_bytes / nano_batches_at_once(config);
  for (PlanRequest& request : requests) request.cluster.max_memory_bytes = 0;
  BatchPlans result{.redispatched = redispatches(config), .num_windows = num_windows};
  const auto planned = [&] {
    return plan_all(config, requests, num_windows,
                    layer_time_options(config, cluster_workers, speeds, result.redispatched));
  };
  result.plans = planned();
  const bool fits = cap == 0 || most_bytes(batch_memory(result.plans)) <= cap;
  if (is_given) {  // `distca plan`, which asks no device, makes the same plans otherwise
    for (Plan& plan : result.plans) plan.cluster.max_memory_bytes = cap;
  }
  if (fits) return result;

  const bool redispatched =
      result.redispatched || config.exchange.keys == Config::Exchange::Keys::kAuto;
  const std::vector<RankMemory> memory = batch_memory(result.plans);
  for (size_t nano = 0; nano < requests.size(); ++nano) {
    Cluster& cluster = requests[nano].cluster;
    cluster.memory = memory_price(config, redispatched, /*window=*/0);
    if (is_given)
      cluster.max_memory_bytes = redispatched ? cap : room_beside(memory, result.plans[nano], cap);
  }
  const BatchPlans kept = result;
  result.redispatched = redispatched;
  if (!is_given) {
    // Q, K and V that homes keep to send them again may take more than servers' kept keys.
    result.plans = planned();
    return most_bytes(batch_memory(result.plans)) < most_bytes(memory) ? result : kept;
  }
  try {
    result.plans = planned();
  } catch (const Error&) {
    // The planner names its own cap, in bytes of one nano-batch; without it, what is wanted shows.
    for (PlanRequest& request : requests) request.cluster.max_memory_bytes = 0;
    throw beyond_cap(config, redispatched, most_bytes(batch_memory(planned())),
                     redispatched ? " of activations" : " of activations and kept keys");
  }
  const int64_t most = most_bytes(batch_memory(result.plans));
  if (most > cap) throw beyond_cap(config, redispatched, most, "");
  return result;
}

}  // namespace

BatchPlans plan_nano_batches(const Config& config, const Batch& batch, int num_workers,
                             const Speeds& speeds, bool trains, int threads) {
  const RunGrid run = run_grid(config, num_workers);
  if (!run.is_pipeline()) return plan_one_stage(config, batch, run.grid.num_workers(), speeds);
  return {.redispatched = true, .pipeline = plan_pipeline(config, batch, run, trains, threads)};
}

BatchPlans plan_later_batch(const Config& config, const Batch& batch, int num_workers,
                            const Speeds& speeds, bool trains, int threads) {
  try {
    return plan_nano_batches(config, batch, num_workers, speeds, trains, threads);
  } catch (const Error& error) {
    const bool must_keep = config.exchange.keys == Config::Exchange::Keys::kKeep;
    if (!must_keep || error.kind() != ErrorKind::kPlan) throw;
  }
  Config redispatching = config;
  redispatching.exchange.keys = Config::Exchange::Keys::kRedispatch;
  return plan_nano_batches(redispatching, batch, num_workers, speeds, trains, threads);
}

BatchPlans check_batches_fit(const Config& config, BatchStream stream, int num_workers,
                             double seconds) {
  const Stopwatch watch;
  BatchPlans first = plan_nano_batches(config, stream.next(), num_workers);
  if (config.plan.max_memory_gib <= 0 && config.plan.max_tokens_per_worker <= 0) return first;
  for (int64_t step = 2; step <= config.train.steps && watch.seconds() < seconds; ++step) {
    try {
      plan_later_batch(config, stream.next(), num_workers);
    } catch (const Error& error) {
      throw Error(error.kind(), "the batch of step {}: {}", step, error.what());
    }
  }
  return first;
}

void check_plans(const Config& config, const BatchPlans& plans) {
  const auto checks_for = [&](const std::string& scheduler) {
    ValidateOptions checks = checks_of(find_scheduler(scheduler));
    checks.profile = config.attention_profile.get();
    return checks;
  };
  std::vector<std::string> violations;
  if (plans.pipeline) violations = plans.pipeline->violations(checks_for(config.plan.scheduler));
  for (const Plan& plan : plans.plans) {  // plan.tolerance = auto may have chosen other schedulers
    if (violations.empty()) violations = validate(plan, checks_for(plan.options.scheduler));
  }
  DISTCA_CHECK(violations.empty(), "scheduler {} made a wrong plan: {}", config.plan.scheduler,
               violations[0]);
}

uint64_t plans_hash(const BatchPlans& plans) {
  Fnv1a64 hash;
  for (const Plan& plan : plans.plans) hash.add(plan_hash(plan));
  if (plans.pipeline) hash.add(plans.pipeline->hash());
  return hash.value();
}

}  // namespace distca
