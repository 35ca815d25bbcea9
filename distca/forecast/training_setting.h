#pragma once
// The settings among which `distca simulate --find-best` looks for the best one (find_best.h): how
// GPUs are divided, how many nano-batches a step has, in which order they are played, and what is
// computed again. All of them train on the same tokens.
//
//     const SettingSpace space{.gpus = 64, .ranks_per_node = 8, .most_nano_batches = 16};
//     for (const Setting& setting : settings_of(contestants()[0], config, space))
//       fmt::print("{}\n", fmt::join(words_of(config, setting), " "));
//
// Plain values; any thread may call the functions.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "distca/config/config.h"
#include "distca/cost/machine.h"

namespace distca {

/// A way to train, which words KEY=VALUE of `distca train` describe if it has no virtual stages.
/// All other keys are those of the configuration.
struct Setting {
  std::string scheduler = "balanced";
  int tensor = 1, stages = 1, replicas = 1;  // the GPUs are their product
  int ranks_per_node = 1;
  int64_t nano_batches = 1, nano_batch_tokens = 1;
  Overlap overlap = Overlap::kWithin;
  // These three count with several stages only.
  PipelineSchedule schedule = PipelineSchedule::kAligned;
  int outstanding = 0;
  /// Above 1 it is interleaved 1F1B, which `distca train` does not have: no words say it.
  int virtual_stages = 1;
  /// plan.max_tokens_per_worker, by which `wlb` packs. 0 means the configuration's.
  int64_t max_tokens = 0;
  /// plan.tolerance, by which `balanced` evens. 0 means the configuration's.
  double tolerance = 0;
  bool spread = false;  // plan.spread
  /// plan.bandwidth_mb_per_s, by which ticks of a pipeline are planned. 0 means the
  /// configuration's.
  int64_t bandwidth_mb_per_s = 0;
  // These two are the least of reliefs_of() that fits the memory.
  Recompute recompute = Recompute::kNone;
  Config::Exchange::Keys keys = Config::Exchange::Keys::kAuto;

  bool operator==(const Setting&) const = default;
};

/// Ours, or a rival that has a scheduler in this program.
struct Contestant {
  std::string name;                     // "ours", else that of the first scheduler
  std::vector<std::string> schedulers;  // plan.scheduler, each of which is tried
  bool is_ours() const { return name == "ours"; }
};
/// Ours first.
const std::vector<Contestant>& contestants();

struct SettingSpace {
  int gpus = 1;
  int ranks_per_node = 1;
  /// The nano-batches of a step are a divisor of it.
  int64_t most_nano_batches = 1;
  int64_t bandwidth_mb_per_s = 0;  // network_mb_per_s()
};
/// MB/s (10^6) of a GPU to other nodes, or to others of the only one.
int64_t network_mb_per_s(const Machine& machine, int gpus);

/// The most nano-batches into which --find-best divides the step of a configuration: a multiple of
/// its batch.nano_batches, so that all have equally many tokens and the longest document fits.
int64_t most_nano_batches(const BatchOptions& batch);

/// All settings of a contestant that the configuration's model allows, always in the same order,
/// with the first of their reliefs. Tensor parallelism stays within a node, and a pipeline has at
/// least as many nano-batches as stages. Ours has ping-pong or one nano-batch at a time, and in
/// pipelines both orders that pool attention, with 0 and 2 outstanding weight gradients, planned by
/// the space's bandwidth unless the configuration has one. Rivals
/// have both overlaps, too, and in pipelines 1F1B, also with weight gradients in idle ticks, P of
/// them outstanding (ZB-H1), and with kVirtualStages where these divide the layers evenly and the
/// nano-batches are a multiple of the stages. `wlb` packs to the mean number of tokens and to
/// kPackedTokens times it, over the replicas and over groups of them (wlb-cp2 to wlb-cp16).
std::vector<Setting> settings_of(const Contestant& contestant, const Config& config,
                                 const SettingSpace& space);
inline constexpr double kPackedTokens = 1.5;
inline constexpr std::array kVirtualStages = {2, 4};

/// A setting of ours with each of kTolerances that the configuration does not have, and with the
/// first of its reliefs. Nothing where a server is alone. Bytes are cheap where they travel under
/// compute, and every wait for the busiest rank is not; on a slow network it is the other way
/// round.
std::vector<Setting> with_tolerances(const Config& config, const Setting& setting);
inline constexpr std::array kTolerances = {0.005, 0.05};
/// A setting of ours likewise with plan.spread, or nothing if it has that.
std::vector<Setting> with_spread(const Config& config, const Setting& setting);

/// A setting with less and less memory: selective recomputation, keys that are dispatched again,
/// full recomputation.
std::vector<Setting> reliefs_of(const Setting& setting);

/// The configuration with a setting.
Config config_of(const Config& config, const Setting& setting);
/// The words by which load_config makes config_of() of the same file and overrides.
std::vector<std::string> words_of(const Config& config, const Setting& setting);
/// The word of train.recompute.
std::string_view recompute_name(Recompute recompute);
/// "T = 8, P = 1, D = 8": tensor parallelism, stages and replicas.
std::string division_text(const Setting& setting);
/// "ping-pong", "within", "aligned, 1 outstanding, ping-pong", ...
std::string order_of(const Setting& setting);

}  // namespace distca
