#pragma once
// Pipelines played paced: the executor, programs, processes and messages of a training step, but
// each operation of the compute stream sleeps its price. Sleeping takes no core, so on two cores
// four or eight ranks show what order, waits and p2p messages cost. They show nothing about
// kernels. Rank 0 writes the lines. Thread rule: one thread a rank, all ranks alike.

#include <string>
#include <vector>

#include "bench/pipeline_setup.h"
#include "distca/comm/communicator.h"

namespace distca::bench {

struct PacedOptions {
  int rounds = 5;           // rounds of our arm, which plays twice in each
  int contest_rounds = 15;  // rounds of all arms, in the setting in which they are compared
  int shown_rounds = 1;     // rounds of the other arms elsewhere, where M = 2 P
  double linear_ms = 14;    // PacedSetting::linear_s
  std::string only;         // the setting of this name, or all whose names hold it
};

/// A setting, and whether its arms are compared.
struct PacedRun {
  PacedSetting setting;
  bool is_contest = false;
};
/// All settings; those of `only`. Throws Error(kUsage) where there is none.
std::vector<PacedRun> paced_runs(const PacedOptions& options);
/// The ranks of the largest.
int ranks_of(const std::vector<PacedRun>& runs);

/// Plays all settings, each on the first ranks of the group. Lines: of each setting "setting", an
/// "arm" for each arm, then one a round.
void measure_paced(const PacedOptions& options, Communicator& comm);

constexpr int kContestRanks = 4;
/// Plays the compared setting once in each arm. Lines: "tick", what each rank did in it.
void trace_paced(const PacedOptions& options, Communicator& comm);

}  // namespace distca::bench
