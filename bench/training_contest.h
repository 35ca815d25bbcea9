#pragma once
// Ours and its rivals in turns on the same batches, on all ranks: what bench/training measures.
// Rank 0 writes the lines. Thread rule: one thread a rank; all ranks call it alike.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/step_arms.h"
#include "bench/training_source.h"

namespace distca::bench {

/// The rivals that ours may be compared with.
inline constexpr const char* kDdp = "ddp";
inline constexpr const char* kPacking = "local";
inline const std::vector<std::string> kRivals = {kPacking, "wlb", "per-document-cp", "greedy",
                                                 kDdp};

struct ContestOptions {
  LlamaConfig model;
  BatchShape shape;
  uint64_t seed = 1;  // seed of batches and weights
  int rounds = 15;
  std::vector<std::string> rivals = kRivals;
  std::string python;                                    // interpreter of the DDP rival
  std::shared_ptr<const AttentionProfile> profile = {};  // prices of our plans, if not pairs
};

/// The most tokens that any arm lets a worker hold at a time, over the mean.
constexpr double kMemoryCap = 1.5;

/// Batches that a source must have.
int num_batches(int rounds);

/// First compares the DDP rival, if it is among the rivals, with ours: its first step and ours on
/// the same documents; one that computes something else is a CHECK. Then measures the peak of all
/// ranks and their speeds, and for each source every arm's best way, by a few rounds of their own,
/// and `rounds` rounds of all.
void run_contest(const ContestOptions& options, std::span<const BatchSource> sources,
                 Communicator& comm);

}  // namespace distca::bench
