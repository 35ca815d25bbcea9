#pragma once
// Ours and its rivals in turns on the same batches, on all ranks: what bench/training measures.
// Thread rule: one thread a rank; all ranks call everything here in the same order.

#include <memory>
#include <optional>
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

// Arms of a result, in this order, then the rivals in the order of kRivals.
enum Who : size_t { kOurs, kOursAgain, kEqualDocuments, kFirstRival };

/// One arm over all rounds.
struct ArmResult {
  struct Tried {
    std::string how;
    double seconds = 0;  // median of a step
  };
  std::string name;
  std::string how;           // the fastest of `tried`
  std::vector<Tried> tried;  // empty where there was nothing to choose
  std::vector<StepFigures> rounds;
  Rates flops;  // [round] of a step
};

struct SourceResult {
  std::string name, what;    // as BatchSource
  int64_t equal_tokens = 0;  // of a document of the control
  std::vector<ArmResult> arms;
};

/// The first step of the DDP rival and of ours on the same documents with the same weights.
struct RivalCheck {
  double loss = 0, rival_loss = 0;                    // nats a target
  double gradient_norm = 0, rival_gradient_norm = 0;  // before clipping
  double bound = 0;                                   // of either's relative difference
};

class Contest {
 public:
  /// Starts the DDP rival if it is among the rivals.
  Contest(const ContestOptions& options, Communicator& comm);
  ~Contest();

  /// First of all: both still have the weights they began with. A rival that computes something
  /// else is a CHECK. None without the DDP rival.
  std::optional<RivalCheck> check_rival(const BatchLengths& batch);
  /// Multiply-adds of all ranks at once, measured, GFLOP/s.
  double measure_peak();
  /// After check_rival, before run: of a few steps of fixed packing; what our tolerance is weighed
  /// with.
  Speeds measure_speeds(const std::vector<BatchLengths>& batches);
  /// Each arm's best way by a few rounds of their own, then `rounds` rounds of all. `source` has
  /// num_batches batches.
  SourceResult run(const BatchSource& source);
  /// Batches that run() takes from a source.
  static int num_batches(int rounds);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace distca::bench
