#include "distca/forecast/memory.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>

#include "distca/base/cgroup.h"
#include "distca/base/error.h"
#include "distca/forecast/memory_cap.h"
#include "distca/forecast/memory_peak.h"
#include "distca/model/weight_table.h"

namespace distca {
namespace {

using enum MemoryPart;

constexpr std::array<const char*, kNumMemoryParts> kNames = {
    "weights",          "gradients",   "AdamW's state", "copies of weights", "checkpoint copy",
    "exchange buffers", "activations", "logits",        "phase under way"};

/// Returns standing_memory() of a rank with this stage.
MemoryParts standing_on_rank(const Config& config, const RunGrid& run, const Stage& stage) {
  const LlamaConfig& model = config.model;
  const int replicas = run.grid.replicas;
  const double main_param = main_param_bytes(model);
  const auto type = static_cast<double>(element_bytes(model.dtype));
  const bool is_sharded = config.parallel.use_distributed_optimizer;
  double elements = 0, matrices = 0, copied = 0;
  double owned = 0, saved = 0;  // elements that the rank alone has, and that it saves
  for (const Weight& weight : weight_table(model, stage)) {
    const auto numel = static_cast<double>(weight.numel());
    elements += numel;
    // With ZeRO-1, all who hold an element divide it; else the replicas of the first do, to save
    // it.
    const int64_t copies = weight.holders.size() * (weight.is_tied ? 2 : 1);
    const bool is_first = !weight.is_copy() && weight.holders.begin == stage.tensor.index;
    owned += numel / static_cast<double>(replicas * copies);
    saved += is_sharded ? numel / static_cast<double>(replicas * copies)
                        : numel * (is_first ? 1.0 / replicas : 0);
    if (!weight.is_matrix()) continue;
    matrices += numel;
    // An embedding that is no head here is not copied: only rows of it are read.
    const bool only_rows =
        weight.phase == OpKind::kEmbed && !(model.tie_word_embeddings && stage.is_last());
    copied += only_rows ? 0 : numel;
  }
  const double main_params = elements * main_param;
  MemoryParts parts;
  parts.at(kWeights) = main_params - (is_sharded ? matrices * (main_param - type) : 0);
  parts.at(kGradients) = main_params;
  if (type < main_param && !is_sharded) parts.at(kCopies) = copied * type;
  parts.at(kState) = 2 * (is_sharded ? owned * main_param : main_params);
  if (is_sharded && type < main_param) parts.at(kState) += owned * main_param;
  // Each replica copies its share of the main params and of both moments, from a device to the
  // host.
  if (config.checkpoint.async && config.checkpoint.every_steps > 0 && !config.on_cuda())
    parts.at(kCheckpoint) = 3 * saved * main_param;
  return parts;
}

/// The least that a step adds on one of a stage's replicas: when the backward of a nano-batch
/// begins, all its activations of one virtual stage are there. Layouts give workers even shares;
/// one that does not gives the local ones that on average.
double activations_on_rank(const Config& config, const RunGrid& run, const Stage& stage) {
  ModelShape shape = config.rank_shape();
  shape.num_layers = stage.num_layers() / stage.virtual_stages;
  const bool redispatches =
      run.is_pipeline() || config.exchange.keys == Config::Exchange::Keys::kRedispatch;
  return static_cast<double>(config.batch.nano_batch_tokens) / run.grid.replicas *
         static_cast<double>(llama_memory(shape, config.train.recompute, redispatches).token_bytes);
}

MemoryParts needed_on_rank(const Config& config, const RunGrid& run, const Stage& stage) {
  MemoryParts parts = standing_on_rank(config, run, stage);
  if (config.train.steps > 0) parts.at(kActivations) = activations_on_rank(config, run, stage);
  return parts;
}

/// Adds up what `on_rank` gives for each local rank that holds weights.
MemoryParts sum_over_ranks(const Config& config, int num_workers, LocalRanks local,
                           decltype(standing_on_rank)& on_rank) {
  const RunGrid run = run_grid(config, num_workers);
  std::map<int, int> counts;  // [first rank with the same weights] local ranks
  const int end = std::min(local.first + local.count, run.num_workers());
  for (int rank = local.first; rank < end; ++rank) ++counts[run.first_replica(rank)];
  MemoryParts parts;
  for (const auto& [rank, count] : counts) {
    MemoryParts all = on_rank(config, run, run.stage_of(rank));
    for (double& bytes : all.bytes) bytes *= count;
    parts += all;
  }
  return parts;
}

/// The subject of a refusal.
std::string who(LocalRanks ranks, const MemoryLimit& limit) {
  if (limit.of_device && ranks.count > 1)
    return fmt::format("the {} ranks that share a device", ranks.count);
  if (limit.of_device) return fmt::format("rank {}", ranks.first);
  return ranks.count == 1 ? "this rank" : fmt::format("this machine's {} ranks", ranks.count);
}

}  // namespace

const char* memory_part_name(MemoryPart part) { return kNames.at(static_cast<size_t>(part)); }

double MemoryParts::total() const { return std::accumulate(bytes.begin(), bytes.end(), 0.0); }

MemoryPart MemoryParts::largest() const {
  return static_cast<MemoryPart>(std::ranges::max_element(bytes) - bytes.begin());
}

MemoryParts& MemoryParts::operator+=(const MemoryParts& other) {
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] += other.bytes[i];
  return *this;
}

double main_param_bytes(const LlamaConfig& model) {
  return model.dtype == ScalarType::kFloat64 ? 8 : 4;
}

MemoryParts standing_memory(const Config& config, int num_workers, LocalRanks local) {
  return sum_over_ranks(config, num_workers, local, standing_on_rank);
}

MemoryParts memory_needed(const Config& config, int num_workers, LocalRanks local) {
  return sum_over_ranks(config, num_workers, local, needed_on_rank);
}

MemoryLimit memory_limit() {
  MemoryLimit limit{.bytes = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGE_SIZE)};
  if (const auto group = cgroup_memory_limit(); group && *group < limit.bytes)
    limit = {.bytes = *group, .of_group = true};
  return limit;
}

void check_memory(const MemoryParts& parts, LocalRanks local, const MemoryLimit& limit) {
  if (parts.total() <= static_cast<double>(limit.bytes)) return;
  const auto gib = [](double bytes) { return fmt::format("{:.2f}", bytes / 0x1p30); };
  std::vector<std::string> each;
  for (int i = 0; i < kNumMemoryParts; ++i) {
    const auto part = static_cast<MemoryPart>(i);
    each.push_back(fmt::format("{} {}", memory_part_name(part), gib(parts.of(part))));
  }
  throw Error(
      ErrorKind::kConfig,
      "{} would need {} GiB of memory ({}), {} {} GiB: use a smaller model or "
      "batch.nano_batch_tokens, train.recompute = full, parallel.use_distributed_optimizer = true, "
      "or {}",
      who(local, limit), gib(parts.total()), fmt::join(each, ", "),
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
                         const std::vector<DeviceFacts>& devices, const BatchPlans* plans) {
  if (devices.empty()) return;
  BatchPlans least = plans ? *plans : BatchPlans();
  if (takes_device_cap(config)) least.redispatched = true;  // whose buffers are smaller
  const int together = config.ranks_are_threads() ? local.count : 1;
  for (int rank = local.first; rank < local.first + local.count; rank += together) {
    const LocalRanks of_device{.first = rank, .count = together};
    const DeviceFacts& device = device_of(config, rank, local, devices);
    check_memory(plans ? least_together(peaks_of_batch(config, least, num_workers, of_device,
                                                       device.multiprocessors))
                       : memory_needed(config, num_workers, of_device),
                 of_device, {.bytes = device.bytes, .of_device = true});
  }
}

}  // namespace distca
