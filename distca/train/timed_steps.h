#pragma once
// Steps of random tokens whose operations are timed, for measure_machine.h.
//
//     TimedSteps steps(run_in_parts(config, 2, 0), num_workers, weights, comm, profile);
//     for (int round = 0; round < 4; ++round) steps.play(round > 0);
//     const Json figures = steps.figures();
//
// Thread rule: one thread of each rank; all ranks alike.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "distca/base/json.h"
#include "distca/comm/communicator.h"
#include "distca/config/config.h"
#include "distca/cost/machine.h"
#include "distca/forecast/op_prices.h"
#include "distca/runtime/executor.h"
#include "distca/train/step.h"
#include "distca/train/worker_weights.h"

namespace distca {

/// The run with nano-batches of a part of its tokens, whose operations are apart from each other:
/// no messages under compute, nothing computed twice, and exchanges that carry something.
/// `outstanding`: parallel.outstanding_weight_gradients.
Config run_in_parts(Config config, int64_t parts, int64_t outstanding);

/// Ends the name of a phase in TimedSteps::figures() if it is backward.
inline constexpr const char* kBackwardMark = " backward";

/// Nano-batches of one long document and many short ones, without tokens.
Batch uneven_batch(const Config& config);

class TimedSteps {
 public:
  /// Plans a step of uneven_batch(). Borrows the weights, which
  /// are null on a dedicated server, and the group.
  TimedSteps(Config config, int num_workers, WorkerWeights* weights, Communicator& comm,
             std::shared_ptr<const AttentionProfile> profile);

  /// Plays the step once; all ranks together.
  void play(bool counts);

  const Config& config() const { return config_; }

  /// Means over the rounds that count, without the fastest and the slowest quarter of them, in
  /// seconds of this rank. Medians of phases would add up to less than a step: a core that is slow
  /// now and then slows another phase each time. "phases": of each phase_name(),
  /// with kBackwardMark, the sums over its operations: "s", "flops", "ops", "tokens". "sums":
  /// "attention_s" and "memory_s", with the amounts "attention" (seconds of the profile) and
  /// "memory" (GB); "copy_s", "copy" (GB); "issue_s", "issue" (communications), "issue_gb" (sent);
  /// "waited_s"; "step_s", of which "besides_s" is what no operation or wait explains.
  Json figures() const;
  /// Sums over the operations of a phase in a step.
  struct Sum {
    double seconds = 0, flops = 0;
    int64_t ops = 0, tokens = 0;
  };

 private:
  using Figures = std::map<std::string, double>;

  void add(const OpTimes& times, const TraceRecorder& recorder, double step_s);
  void add_compute(const Op& op, double seconds, const MachinePrices& amounts,
                   std::map<std::string, Sum>& phases, Figures& others) const;
  void add_communication(const Op& op, const MachinePrices& amounts, Figures& others) const;

  const Config config_;
  const Machine amounts_;
  WorkerWeights* const weights_;
  Communicator& comm_;
  Step step_;
  StepInput input_;
  std::map<std::string, std::vector<Sum>> rounds_;     // [phase] of each round
  std::map<std::string, std::vector<double>> others_;  // [figure] of each round
};

}  // namespace distca
