#pragma once
// Ours and its rivals in turns on the same batches, on all ranks: what bench/training measures.
// Rank 0 writes the lines. Thread rule: one thread a rank; all ranks call everything here in the
// same order.

#include <memory>
#include <string>
#include <vector>

#include "bench/ddp_rival.h"
#include "bench/step_arms.h"
#include "bench/training_source.h"

namespace distca::bench {

/// Who ours may be compared with.
inline constexpr const char* kDdp = "ddp";
inline const std::vector<std::string> kRivals = {"local", "wlb", "per-document-cp", "greedy", kDdp};

struct ContestOptions {
  LlamaConfig model;
  BatchShape shape;
  uint64_t seed = 1;  // of the weights
  int rounds = 15;
  std::vector<std::string> rivals;                       // of kRivals
  std::string python, script;                            // of the DDP rival
  std::shared_ptr<const AttentionProfile> profile = {};  // prices of ours; none: pairs
};

/// The most tokens that any arm lets a worker hold at a time, over the mean.
constexpr double kMemoryCap = 1.5;

class Contest {
 public:
  /// Starts the DDP rival if it is among the rivals.
  Contest(const ContestOptions& options, Communicator& comm);
  ~Contest();

  /// First of all: both still have the weights they began with. The first step of the DDP rival and
  /// of ours on the same documents; a rival that computes something else is a CHECK. Nothing
  /// without the DDP rival.
  void check_rival(const BatchLengths& batch);
  /// Multiply-adds of all ranks at once.
  void measure_peak();
  /// After check_rival, before run: of a few steps of fixed packing; what our tolerance is weighed
  /// with.
  void measure_speeds(const std::vector<BatchLengths>& batches);
  /// Each arm's best way by a few rounds of their own, then `rounds` rounds of all. `source` has
  /// num_batches batches.
  void run(const BatchSource& source);
  /// Batches that run() takes from a source.
  static int num_batches(int rounds);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace distca::bench
