#pragma once
// Plays the experiments of the paper (paper_rows.h) with the plans, programs and prices of this
// program: the paper's planner, ours, and WLB-ideal, each at its best.
//
//     const PaperStudy study{.machine = machine_by_name("h200"), .lengths = lengths, .batches = 1};
//     const PaperResult result = play_row(paper_rows(PaperTable::kFourDimensions)[0], study);
//
// A setting is chosen by the row's first batch, as --find-best chooses (memory first), and played
// with all. Any thread may call the functions; `progress` is called by one thread at a time.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "distca/cost/machine.h"
#include "distca/forecast/paper_rows.h"
#include "distca/forecast/training_setting.h"

namespace distca {

struct PaperStudy {
  Machine machine;
  std::map<SampleKind, std::vector<int64_t>> lengths;  // [documents] as listed, not yet sampled
  int batches = 1;
  /// How far it is, in words.
  std::function<void(const std::string& words)> progress = {};
};

/// A step as it is chosen among, before it is known how long it takes.
struct PaperChoice {
  Setting setting;
  int group = 0;              // WLB-ideal: nodes that divide a document; 0 for the others
  double most_over_mean = 0;  // WLB-ideal: of kPaperMostTokens
};

/// A way to train, at its best setting. Times are means over the batches.
struct PaperBest : PaperChoice {
  double seconds = 0;
  double busy_s = 0;                // SimulatedStep::busy_s
  double even_attention_s = 0;      // SimulatedStep::even_attention_s
  std::map<int, double> of_stages;  // stages: the shortest step with so many, of the first batch
  std::string words() const;        // "P 2, N 16, CP 4, selective"
};

/// A number of the machine, and what one step's time over another's would be, to first order, if
/// that were a fifth (kBetter) better or worse.
struct PaperMove {
  MachineNumber number = MachineNumber::kLinearTflops;
  bool is_better = false;
  double ratio = 0;
};

/// A way to train is not set where nothing fits the memory.
struct PaperResult {
  PaperRow row;
  std::optional<PaperBest> wlb, original, ours;
  /// The number that moves a row most towards the published range. Set where it is outside.
  std::optional<PaperMove> move;
  /// Not of table 3: with no pipeline.
  std::optional<PaperBest> wlb_alone, ours_alone;
  /// Why a way to train is not set although some setting might fit: the first of its settings that
  /// cannot be planned or played.
  std::vector<std::string> refusals;

  /// WLB-ideal over a way to train; 0 if one of them is not set.
  double speedup(const std::optional<PaperBest>& best) const;
  /// WLB-ideal over ours, each with a pipeline or without.
  double best_against_best() const;
  /// -1, 0 or 1: the paper's planner is below, in or above the published range, rounded to
  /// hundredths as that is. Not set if either is not known.
  std::optional<int> place() const;
  /// WLB-ideal over the paper's planner, both with so many stages. 0 if one of them has no room.
  double speedup_of_stages(int stages) const;
};

/// Throws as simulate_step() and sample_workloads() do.
PaperResult play_row(const PaperRow& row, const PaperStudy& study);

/// Figure 3a: what all-gathers add to a step, over the step. The same documents, each whole on a
/// node, are the step without them.
double all_gather_share(int nodes, const Machine& machine);

/// Figure 11, of a row of table 3: how much longer the step of the paper's planner is on one
/// stream, and how much shorter with messages that take no time for their bytes.
struct OneStreamCost {
  double longer = 0, bytes_cost = 0;
  /// The number that moves it most towards the published range. Set where it is outside.
  std::optional<PaperMove> move = {};

  /// -1, 0 or 1: below, in or above kOneStream, rounded to hundredths.
  int place() const;
};
OneStreamCost one_stream_cost(const PaperRow& row, const PaperStudy& study);

}  // namespace distca
