#pragma once
// Predicts a step of a run on a machine, without running anything (`distca simulate`): the plans
// and programs of the run itself, played by prices (sim/player.h, forecast/op_prices.h).
//
//     const Machine machine = machine_by_name("h200");
//     fmt::print("{:.3f} s\n", simulate_step(config, batch, num_workers, machine).seconds);
//
// Any thread may call the function.

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "distca/base/parallel.h"
#include "distca/config/config.h"
#include "distca/cost/machine.h"
#include "distca/forecast/memory_over_time.h"
#include "distca/forecast/memory_peak.h"
#include "distca/forecast/plan_figures.h"
#include "distca/forecast/predicted_trace.h"

namespace distca {

/// Seconds of a rank's step. The parts add up to the step.
struct StepParts {
  double attention = 0;  // core attention
  double linear = 0;     // all other operations that compute
  double copied = 0;     // packing what is sent, putting in place what has arrived
  double issued = 0;     // handing messages to the network
  double late = 0;       // waits for peers that had not begun to send or receive
  double exposed = 0;    // waits for messages that were under way
  double idle = 0;       // behind its last operation, until the last rank's
  double besides = 0;    // the time of every step besides its operations (kStepUs)
  double computed() const { return attention + linear; }
};

/// A part of a step with its name for people.
struct StepPart {
  const char* name;
  double StepParts::*seconds;
};
inline constexpr std::array<StepPart, 8> kStepParts{{{"attention", &StepParts::attention},
                                                     {"linear", &StepParts::linear},
                                                     {"copies", &StepParts::copied},
                                                     {"issues", &StepParts::issued},
                                                     {"waits for peers", &StepParts::late},
                                                     {"waits for bytes", &StepParts::exposed},
                                                     {"idle at the end", &StepParts::idle},
                                                     {"besides", &StepParts::besides}}};

/// The ranks of a stage, or the dedicated servers.
struct SimulatedStage {
  std::string name;   // "stage 0", "servers"; "workers" without a pipeline
  StepParts mean;     // over its ranks
  int peak_rank = 0;  // the one whose tensors take most
  PeakMemory peak;
  /// That rank's, with `peak` as its highest; empty unless it is asked for.
  std::vector<MemoryPoint> memory;
};

/// How much shorter a step is if a number of the machine is better by kBetter.
struct Sensitivity {
  MachineNumber number;
  double shorter = 0;  // share of the step
};
inline constexpr double kBetter = 0.2;

struct SimulatedStep {
  PlanFigures figures;
  double seconds = 0;
  /// Nobody could be faster whose ranks never waited: what all of them compute, over their number.
  double busy_s = 0;
  /// If core attention were even at no cost, and nothing else: the most linear work of a rank, and
  /// the mean of core attention.
  double even_attention_s = 0;
  /// The step under plain packing (plan.scheduler = local), all else alike. 0 where the run has it,
  /// in a pipeline, and with dedicated servers, of which it has none.
  double plain_packing_s = 0;
  double tokens_per_s = 0;
  double share_of_peak = 0;  // model FLOP/s (LlamaConfig::train_flops) over the peak of all ranks
  std::vector<SimulatedStage> stages;
  std::vector<Sensitivity> sensitivities;  // the largest first; those that change nothing left out
  /// Ranks that divide layers evenly are alike: one of each server was played.
  bool one_of_each_server = false;
  std::vector<int> traced_ranks;    // empty without a request for a trace
  bool is_trace_shortened = false;  // one rank of each stage; all would be too many lines
  bool is_ruled_out = false;        // SimulateOptions::most_s: it has its plans' figures alone

  /// The stage one of whose ranks takes more memory than any other rank.
  const SimulatedStage& fullest() const;
};

struct SimulateOptions {
  bool sensitivities = true;  // otherwise they are not looked for: the step is played once
  bool plain_packing = true;  // otherwise SimulatedStep::plain_packing_s is 0
  /// If false, a step is not played that does not fit the machine's memory: then it has its plans'
  /// figures and the peaks of its stages, and all times are 0.
  bool plays_beyond_memory = true;
  /// A step is not played that takes longer in any case, because some rank computes for longer
  /// (setting_bounds.h).
  double most_s = std::numeric_limits<double>::infinity();
  /// A run's first step is refused where keys that must be kept do not fit; later ones dispatch
  /// them again.
  bool is_first_step = true;
  bool memory_over_time = false;  // SimulatedStage::memory
  /// Of ranks that compute at less than the machine's rates: rank, share of them, above 0. Ranks
  /// that divide layers wait for one another, so such a rank makes its whole server slow. Plans
  /// know it with servers.reweight alone.
  std::map<int, double> slow_ranks = {};
  /// The step is also written as a trace, unless it is null.
  const TraceRequest* trace = nullptr;
  /// How many threads plan and play. They change no result. Each plays on a few machines at once.
  int threads = threads_here();
};

/// The batch must be one of the run's, and slow ranks are ranks of it. Throws as
/// plan_nano_batches does, what the trace's `write` throws, and Error(kUsage) where the programs of
/// all ranks are too large to be looked at together.
SimulatedStep simulate_step(const Config& config, const Batch& batch, int num_workers,
                            const Machine& machine, const SimulateOptions& options = {});

}  // namespace distca
