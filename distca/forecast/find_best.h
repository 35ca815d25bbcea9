#pragma once
// Finds the settings of a training (training_setting.h) whose steps are predicted to be the
// shortest on a machine, for ours and for each rival at its own best.
//
//     const std::vector<Found> found =
//         find_best({.config = config, .batch = batch, .gpus = 64, .machine = machine});
//     fmt::print("{:.3f} s with {}\n", found[0].best[0].seconds,
//                fmt::join(words_of(config, found[0].best[0].setting), " "));
//
// A setting that does not fit the machine's memory is not played, nor one whose bound
// (setting_bounds.h) is above what is looked for. All others are predicted whole (simulate_run.h).
// So the best ones are those that predicting every setting would find; a test compares them. Two
// threads predict a setting each; the result does not depend on them.
//
// Thread rule: any thread may call the functions. `progress` is called by one thread at a time, not
// always the caller's.

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "distca/batch/batch_stream.h"
#include "distca/config/config.h"
#include "distca/cost/machine.h"
#include "distca/forecast/simulate_run.h"
#include "distca/forecast/training_setting.h"

namespace distca {

struct BestRequest {
  Config config;
  /// most_nano_batches(config.batch) nano-batches of equally many tokens. Where a setting has
  /// fewer, neighbours are one. So all settings have the same documents.
  Batch batch;
  /// Later steps of a run send kept keys again where there is no room.
  bool is_first_step = true;
  int gpus = 1;
  Machine machine;
  size_t wanted = 10;                                           // how many of ours
  std::vector<Contestant> contestants = distca::contestants();  // ours first
};

/// A setting and its predicted step.
struct PlayedSetting : SimulatedStep {
  Setting setting;
  StepParts mean;           // over all ranks
  double recomputed_s = 0;  // a part of mean.linear
};

/// A setting that does not fit: what it holds at its least, on some rank.
struct TooLarge {
  Setting setting;
  MemoryParts bytes;
};

/// How a setting ended. If nothing is set, it was ruled out by its bound.
struct Tried {
  std::optional<PlayedSetting> played;
  std::optional<TooLarge> too_large;
  std::string refused;  // why it cannot be planned
};

/// The best of the settings that divide the GPUs alike.
struct Division {
  int tensor = 1, stages = 1, replicas = 1;
  /// Not set if none fits. Where it is longer than the last of Found::best, a setting that was
  /// ruled out may be better.
  std::optional<PlayedSetting> best;
  std::optional<TooLarge> nearest;  // the least memory of those that do not fit
};

/// The result of a search for a contestant.
struct Found {
  Contestant contestant;
  std::vector<PlayedSetting> best;  // the shortest first; of a rival at most one
  std::vector<Division> divisions;  // by tensor parallelism, then stages; of a rival none
  int64_t settings = 0;             // the sum of the next four
  int64_t played = 0, too_large = 0, refused = 0, ruled_out = 0;
  std::optional<TooLarge> nearest;  // see Division
  std::string refusal;              // why the first of them cannot be planned
};

/// `tried` settings of a contestant have ended, and at most `left` will be tried.
using BestProgress = std::function<void(const Contestant& contestant, int64_t tried, int64_t left)>;

/// [BestRequest::contestants] Throws Error(kConfig) if a key is given that the search chooses, and
/// if no setting of ours fits the memory.
std::vector<Found> find_best(const BestRequest& request, const BestProgress& progress = {});

/// The batch with neighbouring nano-batches made one, so that so many are left: a divisor of their
/// number (CHECK).
Batch joined(const Batch& batch, int64_t nano_batches);

/// Tries one setting, with the first of its reliefs that fits, unless it takes longer than `most_s`
/// in any case.
Tried try_setting(const BestRequest& request, const Setting& setting,
                  double most_s = std::numeric_limits<double>::infinity());

}  // namespace distca
