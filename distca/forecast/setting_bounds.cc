#include "distca/forecast/setting_bounds.h"

#include <algorithm>

#include "distca/config/run_grid.h"
#include "distca/cost/stage_layers.h"

namespace distca {
namespace {

/// Prices between the points of a profile are interpolated, which may lie this much below them.
constexpr double kBelowProfile = 0.99;

/// The work of one rank of each stage in the mean, in seconds.
struct LeastWork {
  std::vector<double> linear;   // [stage] of all nano-batches
  std::vector<double> forward;  // [stage] forward of the layers for one nano-batch, linear work
  std::vector<double> again;    // [stage] what backward of one nano-batch computes again
  double attention = 0;         // one rank of each server, all layers and nano-batches
};

/// The least time of core attention of a layer, both passes, for a (query, key) pair, on a rank of
/// the machine.
double least_pair_s(const Config& config, const Machine& machine) {
  const AttentionProfile& profile = *machine.attention;
  double forward = 0, backward = 0;  // pairs per ns
  const size_t columns = profile.kv_tokens.size();
  for (size_t i = 0; i < profile.forward_ns.size(); ++i) {
    const auto q = static_cast<double>(profile.q_tokens[i / columns]);
    const auto kv = static_cast<double>(profile.kv_tokens[i % columns]);
    if (q > kv) continue;
    const double pairs = q * (kv - (q - 1) / 2);
    forward = std::max(forward, pairs / static_cast<double>(profile.forward_ns[i]));
    backward = std::max(backward, pairs / static_cast<double>(profile.backward_ns[i]));
  }
  const auto size_of = [](const AttentionShape& s) {
    return static_cast<double>(s.num_heads * (s.head_dim_qk + s.head_dim_v));
  };
  const double ns = kBelowProfile * size_of(config.rank_shape().attention) /
                    size_of(profile.shape) * (1 / forward + 1 / backward);
  return 1e-9 * ns / machine.of(MachineNumber::kAttentionRate);
}

LeastWork least_work(const Config& config, const RunGrid& run, const Machine& machine,
                     const BatchWork& work) {
  const ModelShape shape = config.rank_shape();
  const double second = machine.of(MachineNumber::kLinearTflops) * 1e12;  // FLOPs
  const double products = 2 * static_cast<double>(layer_products(shape)) / second;
  const double head = 2 * static_cast<double>(head_products(shape)) / second;
  const double again = 2 / second *
                       static_cast<double>(products_again(shape, config.train.recompute,
                                                          /*keys_travel_again=*/true));
  const double tokens = static_cast<double>(work.tokens) / run.grid.replicas;
  const double nano_tokens = tokens / static_cast<double>(config.batch.nano_batches);
  LeastWork least;
  for (int stage = 0; stage < run.grid.stages; ++stage) {
    const auto layers = static_cast<double>(run.num_layers(stage));
    least.linear.push_back(tokens * layers * (3 * products + again));
    least.forward.push_back(nano_tokens * layers * products);
    least.again.push_back(nano_tokens * layers * again);
  }
  least.linear.back() += tokens * 3 * head;
  const std::vector<int64_t> layers = config.model.num_layers_of_windows();
  const double pair_s = least_pair_s(config, machine);
  for (size_t window = 0; window < layers.size(); ++window) {
    least.attention +=
        static_cast<double>(layers[window]) * static_cast<double>(work.pairs[window]) * pair_s;
  }
  return least;
}

/// The least time from the first nano-batch's start until the gradients of the last one that this
/// stage plays have come to the first stage.
double least_through(const Config& config, const RunGrid& run, const LeastWork& least,
                     size_t stage) {
  const bool at_home = config.parallel.pipeline_schedule == PipelineSchedule::kAtHome;
  const bool pairs = config.pairs_nano_batches() && !at_home;
  const auto outstanding = static_cast<double>(config.parallel.outstanding_weight_gradients);
  double before = 0, behind = 0;
  for (size_t i = 0; i < stage; ++i) {
    // The first nano-batch of a pair leaves a stage once the other one has played all layers but
    // one. The last micro-batch may have a nano-batch alone.
    const auto layers = static_cast<double>(run.num_layers(static_cast<int>(i)));
    const double pair = pairs ? std::max(1.0, 2 * (layers - 1) / layers) : 1;
    const bool ends_with_pair = config.batch.nano_batches % 2 == 0;
    before += pair * least.forward[i];
    behind += (ends_with_pair ? pair : 1) *
              ((outstanding > 0 ? 1 : 2) * least.forward[i] + least.again[i]);
  }
  // A nano-batch comes through one virtual stage of each of them, and ends through one.
  before /= run.virtual_stages;
  behind /= run.virtual_stages;
  double own = least.linear[stage];
  if (at_home)
    own += least.attention * static_cast<double>(run.num_layers(static_cast<int>(stage))) /
           static_cast<double>(config.model.num_hidden_layers) / run.grid.replicas;
  // Weight gradients that wait may be computed while the last nano-batch's gradients travel.
  const double left = outstanding * (pairs ? 2 : 1) * least.forward[stage];
  return before + std::max(own, own - left + behind);
}

/// The most nano-batches that are whole on a stage at the same time: all but the last of a pair.
/// Each counts as often as it is there on a virtual stage.
int64_t whole_in_flight(const Config& config, int stages, int stage) {
  if (stages == 1) return 1;
  const PipelineSchedule schedule = config.parallel.pipeline_schedule;
  const bool pairs = config.pairs_nano_batches() && schedule != PipelineSchedule::kAtHome;
  const int64_t later = stages - 1 - stage;
  const int64_t most = schedule == PipelineSchedule::kAligned ? 2 * later + 1 : later + 1;
  const int64_t nano_batches = config.batch.nano_batches;
  if (const int64_t all = config.parallel.virtual_stages; all > 1)
    return std::min(2 * later + (all - 1) * stages + 1, all * nano_batches);
  return pairs ? std::min(2 * most, nano_batches) - 1 : std::min(most, nano_batches);
}

}  // namespace

BatchWork batch_work(const Config& config, const Batch& batch) {
  BatchWork work;
  for (size_t window = 0; window < config.model.windows().size(); ++window) {
    const Mask mask = config.rank_shape(window).attention.mask;
    int64_t& pairs = work.pairs.emplace_back();
    for (const NanoBatchSource& source : batch) {
      for (const Document& document : source.nano_batch.documents) {
        const Range all{0, document.length};
        pairs += mask.pairs(all, all);
      }
    }
  }
  for (const NanoBatchSource& source : batch) work.tokens += source.nano_batch.num_tokens();
  return work;
}

double least_step_s(const Config& config, int num_workers, const Machine& machine,
                    const BatchWork& work) {
  const RunGrid run = run_grid(config, num_workers);
  const LeastWork least = least_work(config, run, machine, work);
  const int stages = run.grid.stages;
  double busy = least.attention / run.grid.num_workers();
  for (const double linear : least.linear) busy += linear / stages;
  for (size_t stage = 0; run.is_pipeline() && stage < least.linear.size(); ++stage)
    busy = std::max(busy, least_through(config, run, least, stage));
  return busy;
}

double least_busiest_s(const Config& config, int num_workers, const Machine& machine,
                       const PlanFigures& figures, const std::vector<RankSample>& work) {
  const RunGrid run = run_grid(config, num_workers);
  const bool at_home = config.parallel.pipeline_schedule == PipelineSchedule::kAtHome;
  if (run.is_pipeline() && !at_home) return 0;
  // Figures of a pipeline are those of all layers.
  const auto layers = static_cast<double>(run.is_pipeline() ? 1 : config.model.num_hidden_layers);
  const double pair_s = layers * least_pair_s(config, machine);
  const std::vector<int64_t> no_pairs(config.model.windows().size(), 0);
  const LeastWork token =
      least_work(config, run, machine, {.tokens = run.grid.replicas, .pairs = no_pairs});
  double most = 0;
  for (int server = 0; server < run.grid.num_workers(); ++server) {
    const auto i = static_cast<size_t>(server);
    most = std::max(most, static_cast<double>(work[i].tokens) *
                                  token.linear[static_cast<size_t>(run.grid.stage(server))] +
                              static_cast<double>(figures.load_after[i]) * pair_s);
  }
  return most;
}

MemoryParts least_peak(const Config& config, int num_workers) {
  const RunGrid run = run_grid(config, num_workers);
  MemoryParts most;
  for (int stage = 0; stage < run.grid.stages; ++stage) {
    const int rank = run.rank_of(run.grid.rank(stage, 0), 0);
    MemoryParts parts = memory_needed(config, num_workers, {.first = rank, .count = 1});
    parts.at(MemoryPart::kActivations) *=
        static_cast<double>(whole_in_flight(config, run.grid.stages, stage));
    if (parts.total() > most.total()) most = parts;
  }
  return most;
}

double recomputed_s(const Config& config, int num_workers, const Machine& machine,
                    const BatchWork& work) {
  const RunGrid run = run_grid(config, num_workers);
  const LeastWork least = least_work(config, run, machine, work);
  double again = 0;
  for (const double nano_batch : least.again)
    again += nano_batch * static_cast<double>(config.batch.nano_batches) / run.grid.stages;
  return again;
}

}  // namespace distca
