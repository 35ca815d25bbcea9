#include "distca/forecast/plan_pipeline.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "distca/base/error.h"
#include "distca/base/parallel.h"
#include "distca/cost/stage_layers.h"
#include "distca/forecast/plan_request.h"

namespace distca {
namespace {

/// Returns the request for the plan of one stage alone, on its own replicas.
PlanRequest stage_request(const Config& config, const NanoBatch& nano_batch, const Grid& grid) {
  Config alone = config;
  alone.servers.capacity.clear();
  PlanRequest request = plan_request(alone, nano_batch, grid.replicas);
  request.cluster.max_memory_bytes = 0;
  return request;
}

/// [servers] Of the server's own layers. Attention is that of all layer steps of a tick, which are
/// those of the largest stage.
std::vector<RankSpeed> assumed_stage_speeds(const Config& config, const RunGrid& run) {
  ModelShape model = config.rank_shape();
  const auto speed_of = [&](int64_t layers) {
    model.num_layers = layers;
    return assumed_speeds(model, 1, config.attention_profile.get(),
                          products_again(model, config.train.recompute,
                                         /*keys_travel_again=*/true))
        .ranks[0];
  };
  std::vector<RankSpeed> speeds(run.grid.num_ranks(), speed_of(run.most_layers()));
  for (int rank = 0; rank < run.grid.num_workers(); ++rank) {
    speeds[rank].linear_ps_per_token =
        speed_of(run.num_layers(run.grid.stage(rank))).linear_ps_per_token;
  }
  return speeds;
}

/// [stage] The head's work, which the last stage does in forward ticks, with its backward where
/// the step trains.
std::vector<EmbeddingHeadTime> assumed_embedding_head_time(const Config& config, const RunGrid& run,
                                                           bool trains) {
  ModelShape model = config.rank_shape();
  model.num_layers = 1;
  const RankSpeed layer = assumed_speeds(model, 1, config.attention_profile.get()).ranks[0];
  const double forward = static_cast<double>(layer.linear_ps_per_token) / 3 *
                         static_cast<double>(head_products(model)) /
                         static_cast<double>(layer_products(model));
  std::vector<EmbeddingHeadTime> ends(run.grid.stages);
  ends.back().forward_ps_per_token = std::llround(forward * (trains ? 3 : 1));
  return ends;
}

/// With 1f1b, some rank of each stage has to compute its attention.
void check_stage_capacities(const Config& config, const RunGrid& run,
                            const std::vector<int64_t>& capacity) {
  if (capacity.empty() || config.parallel.pipeline_schedule != PipelineSchedule::kAtHome) return;
  for (int stage = 0; stage < run.grid.stages; ++stage) {
    const auto first = capacity.begin() + run.grid.rank(stage, 0);
    DISTCA_THROW_IF(std::all_of(first, first + run.grid.replicas, [](int64_t c) { return c == 0; }),
                    ErrorKind::kConfig,
                    "servers.capacity = {}: stage {} has none, and with "
                    "parallel.pipeline_schedule = 1f1b each stage computes its own attention",
                    fmt::join(capacity, ","), stage);
  }
}

/// Returns a line if the activations of the micro-batches in flight, and what waits for weight
/// gradients, take more than plan.max_memory_gib on a rank of some stage.
std::string excess_of_activations(const Config& config, const RunGrid& run,
                                  const PipelineParts& parts) {
  if (config.plan.max_memory_gib <= 0) return "";
  ModelShape model = config.rank_shape();
  const PipelineRequest& request = parts.request();
  for (int stage = 0; stage < run.grid.stages; ++stage) {
    model.num_layers = run.num_layers(stage) / run.virtual_stages;
    const int64_t token_bytes =
        llama_memory(model, config.train.recompute, /*keys_travel_again=*/true).token_bytes;
    int64_t tokens = 0;
    for (const Layout& home : request.homes) {
      for (int replica = 0; replica < run.grid.replicas; ++replica)
        tokens = std::max(tokens, home.num_tokens(replica));
    }
    const int64_t in_flight =
        std::min<int64_t>(int64_t{request.slots} * most_in_flight(parts.ticks(), stage),
                          std::ssize(request.nano_batches) * run.virtual_stages);
    const int64_t waiting = most_outstanding(parts.weight_gradients(), stage);
    const int64_t bytes = in_flight * token_bytes + waiting * left_token_bytes(model);
    const double gib = static_cast<double>(tokens * bytes) / 0x1p30;
    if (gib > config.plan.max_memory_gib)
      return fmt::format(
          "plan.max_memory_gib = {}: a rank of stage {} would hold {:.3g} GiB of activations of {} "
          "nano-batches in flight; use more workers, a smaller batch.nano_batch_tokens, "
          "train.recompute = full or a larger cap",
          config.plan.max_memory_gib, stage, gib, in_flight);
  }
  return "";
}

}  // namespace

std::shared_ptr<const PipelineParts> plan_pipeline(const Config& config, const Batch& batch,
                                                   const RunGrid& run, bool trains, int threads) {
  const PipelineSchedule schedule = config.parallel.pipeline_schedule;
  const bool pairs =
      config.train.overlap == Overlap::kPingPong && schedule != PipelineSchedule::kAtHome;
  PipelineStepRequest step{
      .layers = run.layers, .schedule = schedule, .virtual_stages = run.virtual_stages};
  PipelineRequest& request = step.request;
  request.grid = run.grid;
  request.slots = pairs ? 2 : 1;
  request.trains = trains;
  request.threads = threads;
  DISTCA_CHECK(!batch.empty(), "no nano-batch");
  for (const NanoBatchSource& source : batch) request.nano_batches.push_back(source.nano_batch);
  request.homes.resize(batch.size());
  for_each_in_parallel(batch.size(), threads, [&](size_t i) {
    request.homes[i] = make_layout(stage_request(config, request.nano_batches[i], run.grid));
  });
  const PlanRequest alone = stage_request(config, request.nano_batches[0], run.grid);
  request.shape = alone.shape;
  request.options = alone.options;
  request.profile = alone.profile;
  request.cluster = alone.cluster;
  request.fill_ticks = config.plan.fill_ticks;
  request.bytes_per_us = config.plan.bandwidth_mb_per_s;
  request.layer_steps = run.most_layers() / run.virtual_stages;
  request.balance_target =
      pairs && batch.size() > 1 ? BalanceTarget::kWhole : BalanceTarget::kAttention;
  request.speeds = assumed_stage_speeds(config, run);
  request.ends = assumed_embedding_head_time(config, run, trains);
  const ModelShape shape = config.rank_shape();
  request.products = layer_products(shape);
  request.products_again =
      products_again(shape, config.train.recompute, /*keys_travel_again=*/true);
  request.outstanding_weight_gradients =
      static_cast<int>(config.parallel.outstanding_weight_gradients);
  request.in_place = config.servers.in_place;
  request.capacity = checked_capacities(config, run.grid.num_workers());
  check_stage_capacities(config, run, request.capacity);
  // Documents of another batch may let more weight gradients wait: no such batch ends a run that
  // could go on with fewer.
  while (true) {
    auto parts = std::make_shared<const PipelineParts>(step);
    const std::string excess = trains ? excess_of_activations(config, run, *parts) : "";
    if (excess.empty()) return parts;
    DISTCA_THROW_IF(request.outstanding_weight_gradients == 0, ErrorKind::kPlan, "{}", excess);
    request.outstanding_weight_gradients /= 2;
  }
}

}  // namespace distca
