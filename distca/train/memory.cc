#include "distca/train/memory.h"

#include <unistd.h>

#include <algorithm>

#include "distca/base/cgroup.h"
#include "distca/base/error.h"
#include "distca/model/weight_table.h"
#include "distca/plan/exchange.h"
#include "distca/program/overlap.h"
#include "distca/train/nano_phases.h"
#include "distca/train/plan_request.h"
#include "distca/train/step.h"

namespace distca {
namespace {

/// Local ranks that hold weights.
double local_workers(int num_workers, LocalRanks local) {
  return std::clamp(num_workers - local.first, 0, local.count);
}

}  // namespace

double master_bytes(const LlamaConfig& model) {
  return model.dtype == ScalarType::kFloat64 ? 8 : 4;
}

MemoryParts standing_memory(const Config& config, int num_workers, LocalRanks local) {
  const LlamaConfig& model = config.model;
  const double master = master_bytes(model), workers = local_workers(num_workers, local);
  const auto type = static_cast<double>(element_bytes(model.dtype));
  const double masters = workers * static_cast<double>(model.num_parameters()) * master;
  const bool is_sharded = config.parallel.use_distributed_optimizer;
  const double share = 1.0 / std::max(num_workers, 1);
  MemoryParts parts;
  // Of matrices, in the compute type; of an embedding that is no head, only rows are read.
  double matrices = 0, copied = 0;
  for (const Weight& weight : weight_table(model)) {
    if (!weight.is_matrix()) continue;
    const bool only_rows = weight.layer == kBeforeLayers && !model.tie_word_embeddings;
    matrices += static_cast<double>(weight.numel());
    copied += only_rows ? 0 : static_cast<double>(weight.numel());
  }
  parts.weights = masters - (is_sharded ? workers * matrices * (master - type) : 0);
  parts.gradients = masters;
  if (type < master && !is_sharded) parts.copies = workers * copied * type;
  parts.state = 2 * masters * (is_sharded ? share : 1);
  if (is_sharded && type < master) parts.state += masters * share;
  // Each worker copies its share of the masters and of both moments.
  if (config.checkpoint.async && config.checkpoint.every_steps > 0)
    parts.checkpoint = 3 * masters * share;
  return parts;
}

MemoryParts memory_needed(const Config& config, int num_workers, LocalRanks local) {
  const LlamaConfig& model = config.model;
  const double master = master_bytes(model), workers = local_workers(num_workers, local);
  const auto type = static_cast<double>(element_bytes(model.dtype));
  const double under_way = config.pairs_nano_batches() ? 2 : 1;
  // One of two has come back through its last layer when the other is there.
  const auto layers = static_cast<double>(model.num_hidden_layers);
  const double layers_kept = config.pairs_nano_batches() ? 2 * layers - 1 : layers;
  // Layouts give workers even shares; one that does not gives the local ones that on average.
  const double tokens =
      static_cast<double>(config.batch.nano_batch_tokens) * workers / std::max(num_workers, 1);
  const bool redispatches = config.exchange.keys == Config::Exchange::Keys::kRedispatch;
  MemoryParts parts = standing_memory(config, num_workers, local);
  if (config.train.steps == 0) return parts;
  parts.activations =
      layers_kept / layers * tokens *
      static_cast<double>(
          llama_memory(model.shape(), config.train.recompute, redispatches).token_bytes);
  // At the loss's backward: log-probabilities, the gradient by them, and that by the logits.
  const double rows =
      std::min(tokens, workers * static_cast<double>(step_options(config).loss_rows(model)));
  parts.logits = 3 * rows * static_cast<double>(model.vocab_size) * master;
  // Later, in the last layer's backward: two gradients by inner vectors of its MLP or, with kFull,
  // those of a chunk of rows, then Q, K, V again.
  const AttentionShape attention = model.shape().attention;
  const bool full = config.train.recompute == Recompute::kFull;
  const double inner_rows =
      full ? std::min(tokens, workers * static_cast<double>(NanoPhases::kChunkRows)) : tokens;
  double later = 2 * inner_rows * static_cast<double>(model.intermediate_size) * type;
  if (full && !redispatches) {
    later = std::max(
        later, under_way * tokens *
                   static_cast<double>(attention.q_token_bytes() + attention.kv_token_bytes()));
  }
  parts.activations += std::max(0.0, later - parts.logits);
  return parts;
}

Program training_program(const Config& config, const std::vector<PlanIndex>& plans,
                         bool redispatched, int rank, int num_workers) {
  return rank_program(config, plans, redispatched, ProgramRequest::Kind::kTrain, rank, num_workers,
                      rank < num_workers
                          ? gradient_exchange(config.model, step_options(config), rank, num_workers)
                          : nullptr);
}

double exchange_buffer_bytes(const Config& config, const std::vector<Plan>& plans,
                             bool redispatched, int num_workers, LocalRanks local) {
  if (config.train.steps == 0) return 0;
  std::vector<PlanIndex> indices(plans.begin(), plans.end());
  double bytes = 0;
  for (int rank = local.first; rank < local.first + local.count; ++rank) {
    const Program program = training_program(config, indices, redispatched, rank, num_workers);
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
      "parallel.use_distributed_optimizer = true, or fewer ranks on this machine",
      local.count == 1 ? "this rank" : fmt::format("this machine's {} ranks", local.count),
      gib(parts.total()), gib(parts.weights), gib(parts.gradients), gib(parts.state),
      gib(parts.copies), gib(parts.activations), gib(parts.logits), gib(parts.buffers),
      gib(parts.checkpoint),
      limit.of_group ? "the control group of this process allows" : "this machine has",
      gib(static_cast<double>(limit.bytes)));
}

}  // namespace distca
