#include "distca/forecast/memory.h"

#include <unistd.h>

#include <algorithm>

#include "distca/base/cgroup.h"
#include "distca/base/error.h"
#include "distca/config/run_grid.h"
#include "distca/forecast/batch_programs.h"
#include "distca/forecast/memory_cap.h"
#include "distca/forecast/step_program.h"
#include "distca/model/weight_table.h"
#include "distca/program/overlap.h"

namespace distca {
namespace {

/// Local ranks that hold the weights of a stage.
double local_replicas(const Grid& grid, int stage, LocalRanks local) {
  const int begin = std::max(local.first, grid.rank(stage, 0));
  const int end = std::min(local.first + local.count, grid.rank(stage + 1, 0));
  return std::max(0, end - begin);
}

/// Returns standing_memory() of one of a stage's replicas.
MemoryParts standing_on_rank(const Config& config, const Stage& stage, int replicas) {
  const LlamaConfig& model = config.model;
  const double master = master_bytes(model);
  const auto type = static_cast<double>(element_bytes(model.dtype));
  const double even = 1.0 / std::max(replicas, 1);
  const bool is_sharded = config.parallel.use_distributed_optimizer;
  double elements = 0, matrices = 0, copied = 0;
  double owned = 0, saved = 0;  // elements that the replica alone has, and that it saves
  for (const Weight& weight : weight_table(model, stage)) {
    const auto numel = static_cast<double>(weight.numel());
    elements += numel;
    // With ZeRO-1 the replicas of both stages share what is tied; else the first stage saves it.
    owned += numel * (weight.is_tied ? even / 2 : even);
    saved += is_sharded ? numel * (weight.is_tied ? even / 2 : even)
                        : numel * (weight.is_copy() ? 0 : even);
    if (!weight.is_matrix()) continue;
    matrices += numel;
    // An embedding that is no head here is not copied: only rows of it are read.
    const bool only_rows =
        weight.phase == WeightPhase::kEmbed && !(model.tie_word_embeddings && stage.is_last());
    copied += only_rows ? 0 : numel;
  }
  const double masters = elements * master;
  MemoryParts parts;
  parts.weights = masters - (is_sharded ? matrices * (master - type) : 0);
  parts.gradients = masters;
  if (type < master && !is_sharded) parts.copies = copied * type;
  parts.state = 2 * (is_sharded ? owned * master : masters);
  if (is_sharded && type < master) parts.state += owned * master;
  // Each replica copies its share of the masters and of both moments, from a device to the host.
  if (config.checkpoint.async && config.checkpoint.every_steps > 0 && !config.on_cuda())
    parts.checkpoint = 3 * saved * master;
  return parts;
}

/// Returns the least that a step adds on one of a stage's replicas, without buffers. On all stages
/// but the last, the highest moment that is counted is the beginning of the last layer's backward,
/// when as many nano-batches are in flight as ever.
MemoryParts step_on_rank(const Config& config, const RunGrid& run, int stage_index) {
  const Stage stage = run.stage_of(run.grid.rank(stage_index, 0));
  ModelShape shape = config.model.shape();
  shape.num_layers = stage.layers.size();
  const auto layers = static_cast<double>(shape.num_layers);
  const auto type = static_cast<double>(element_bytes(config.model.dtype));
  const bool redispatches =
      run.is_pipeline() || config.exchange.keys == Config::Exchange::Keys::kRedispatch;
  const bool pairs = plays_pairs(config, run);
  const auto in_flight = static_cast<double>(nano_batches_in_flight(config, run, stage_index));
  // One of a pair has come back through its last layer when the other is there.
  const double layers_kept = in_flight * layers - (pairs ? 1 : 0);
  // Layouts give workers even shares; one that does not gives the local ones that on average.
  const double tokens =
      static_cast<double>(config.batch.nano_batch_tokens) / std::max(run.grid.replicas, 1);
  const Recompute recompute = config.train.recompute;
  MemoryParts parts;
  parts.activations = layers_kept / layers * tokens *
                      static_cast<double>(llama_memory(shape, recompute, redispatches).token_bytes);
  // At the loss's backward: log-probabilities, the gradient by them, and that by the logits.
  if (stage.is_last()) {
    const double rows =
        std::min(tokens, static_cast<double>(step_options(config).loss_rows(config.model)));
    parts.logits =
        3 * rows * static_cast<double>(config.model.vocab_size) * master_bytes(config.model);
  }
  // In the last layer's backward: its output and the gradient by that, and gradients by inner
  // vectors of its MLP, where kNone has kept the product and kFull has only a chunk of rows, then
  // Q, K, V again.
  const bool full = recompute == Recompute::kFull;
  const double rows =
      full ? std::min(tokens, static_cast<double>(step_options(config).chunk_rows)) : tokens;
  const double inner =
      (recompute == Recompute::kNone ? 1 : 2) * static_cast<double>(shape.intermediate_size);
  double later = rows * (2 * static_cast<double>(shape.hidden_size) + inner) * type;
  if (full && !redispatches) {
    const AttentionShape& attention = shape.attention;
    later = std::max(
        later, (pairs ? 2 : 1) * tokens *
                   static_cast<double>(attention.q_token_bytes() + attention.kv_token_bytes()));
  }
  parts.activations += std::max(0.0, later - parts.logits);
  return parts;
}

/// Adds the parts of so many ranks.
void add(MemoryParts& sum, const MemoryParts& of_rank, double ranks) {
  for (double MemoryParts::*part :
       {&MemoryParts::weights, &MemoryParts::gradients, &MemoryParts::state, &MemoryParts::copies,
        &MemoryParts::activations, &MemoryParts::logits, &MemoryParts::buffers,
        &MemoryParts::checkpoint}) {
    sum.*part += ranks * of_rank.*part;
  }
}

/// The subject of a refusal.
std::string who(LocalRanks ranks, const MemoryLimit& limit) {
  if (limit.of_device && ranks.count > 1)
    return fmt::format("the {} ranks that share a device", ranks.count);
  if (limit.of_device) return fmt::format("rank {}", ranks.first);
  return ranks.count == 1 ? "this rank" : fmt::format("this machine's {} ranks", ranks.count);
}

}  // namespace

double master_bytes(const LlamaConfig& model) {
  return model.dtype == ScalarType::kFloat64 ? 8 : 4;
}

bool plays_pairs(const Config& config, const RunGrid& run) {
  const bool at_home = config.parallel.pipeline_schedule == PipelineSchedule::kAtHome;
  return config.pairs_nano_batches() && !(run.is_pipeline() && at_home);
}

int64_t nano_batches_in_flight(const Config& config, const RunGrid& run, int stage) {
  const bool at_home = config.parallel.pipeline_schedule == PipelineSchedule::kAtHome;
  const int64_t behind = run.grid.stages - 1 - stage,
                of_a_micro_batch = plays_pairs(config, run) ? 2 : 1;
  const int64_t micro_batches = at_home ? behind + 1 : 2 * behind + 1;
  return std::min(config.batch.nano_batches, of_a_micro_batch * micro_batches);
}

MemoryParts standing_memory(const Config& config, int num_workers, LocalRanks local) {
  const RunGrid run = run_grid(config, num_workers);
  MemoryParts parts;
  for (int stage = 0; stage < run.grid.stages; ++stage) {
    const double ranks = local_replicas(run.grid, stage, local);
    if (ranks == 0) continue;
    add(parts, standing_on_rank(config, run.stage_of(run.grid.rank(stage, 0)), run.grid.replicas),
        ranks);
  }
  return parts;
}

MemoryParts memory_needed(const Config& config, int num_workers, LocalRanks local) {
  MemoryParts parts = standing_memory(config, num_workers, local);
  if (config.train.steps == 0) return parts;
  const RunGrid run = run_grid(config, num_workers);
  for (int stage = 0; stage < run.grid.stages; ++stage) {
    const double ranks = local_replicas(run.grid, stage, local);
    if (ranks > 0) add(parts, step_on_rank(config, run, stage), ranks);
  }
  return parts;
}

double exchange_buffer_bytes(const Config& config, const BatchPlan& plans, int num_workers,
                             LocalRanks local) {
  if (config.train.steps == 0) return 0;
  const BatchPrograms programs(config, plans, ProgramRequest::Kind::kTrain, num_workers);
  double bytes = 0;
  for (int rank = local.first; rank < local.first + local.count; ++rank) {
    const Program program = programs.of(rank);
    for (const Buffer& buffer : program.buffers) bytes += static_cast<double>(buffer.bytes);
  }
  return bytes;
}

MemoryLimit memory_limit() {
  MemoryLimit limit{.bytes = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGE_SIZE)};
  if (const auto group = cgroup_memory_limit(); group && *group < limit.bytes)
    limit = {.bytes = *group, .of_group = true};
  return limit;
}

void check_memory(const MemoryParts& parts, LocalRanks local, const MemoryLimit& limit) {
  const auto gib = [](double bytes) { return fmt::format("{:.2f}", bytes / 0x1p30); };
  DISTCA_THROW_IF(
      parts.total() > static_cast<double>(limit.bytes), ErrorKind::kConfig,
      "{} would need {} GiB of memory (weights {}, gradients {}, AdamW's state {}, copies of "
      "weights {}, activations {}, logits {}, exchange buffers {}, copy for checkpoints {}), {} {} "
      "GiB: use a smaller model or batch.nano_batch_tokens, train.recompute = full, "
      "parallel.use_distributed_optimizer = true, or {}",
      who(local, limit), gib(parts.total()), gib(parts.weights), gib(parts.gradients),
      gib(parts.state), gib(parts.copies), gib(parts.activations), gib(parts.logits),
      gib(parts.buffers), gib(parts.checkpoint),
      limit.of_device  ? (local.count == 1 ? "its device has" : "which has")
      : limit.of_group ? "the control group of this process allows"
                       : "this machine has",
      gib(static_cast<double>(limit.bytes)),
      !limit.of_device   ? "fewer ranks on this machine"
      : local.count == 1 ? "more workers"
                         : "fewer ranks on a device");
}

const DeviceFacts& device_of(const Config& config, int rank, LocalRanks local,
                             const std::vector<DeviceFacts>& devices) {
  const auto number = static_cast<size_t>(config.ranks_are_threads() ? 0 : rank - local.first);
  return devices.at(number % devices.size());
}

void check_device_memory(const Config& config, int num_workers, LocalRanks local,
                         const std::vector<DeviceFacts>& devices, const BatchPlan* plans) {
  if (devices.empty()) return;
  BatchPlan least = plans ? *plans : BatchPlan();
  if (takes_device_cap(config)) least.redispatched = true;  // whose buffers are smaller
  const int together = config.ranks_are_threads() ? local.count : 1;
  for (int rank = local.first; rank < local.first + local.count; rank += together) {
    const LocalRanks of_device{.first = rank, .count = together};
    MemoryParts parts = memory_needed(config, num_workers, of_device);
    if (plans) parts.buffers = exchange_buffer_bytes(config, least, num_workers, of_device);
    check_memory(parts, of_device,
                 {.bytes = device_of(config, rank, local, devices).bytes, .of_device = true});
  }
}

}  // namespace distca
