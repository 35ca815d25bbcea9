#pragma once
// A training step in figures: how long, and how much of it the ranks stood idle. Plain values, any
// thread; interleaved_steps: one thread a rank, all ranks alike.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "bench/rounds.h"
#include "distca/cost/speed_meter.h"

namespace distca::bench {

/// [nano-batch] tokens of each of its documents.
using BatchLengths = std::vector<std::vector<int64_t>>;

int64_t num_tokens(const BatchLengths& batch);
/// Next-token pairs: a document's last token has no target.
int64_t num_targets(const BatchLengths& batch);
/// (query, key) pairs that the causal mask allows.
int64_t num_pairs(const BatchLengths& batch);
/// All documents in one nano-batch.
BatchLengths merged(const BatchLengths& batch);

/// One rank's step, on a clock that all ranks of a machine share.
struct PlayedStep {
  double begin_s = 0;        // after a barrier
  double computed_s = 0;     // when nothing was left to compute before gradients were summed
  double end_s = 0;          // end of its update
  double waited_s = 0;       // in exchanges of attention, for receives and sends
  double processor_s = 0;    // processor time of all threads of the process, from begin to end
  double loss_sum = 0;       // nats, over this rank's targets
  double gradient_norm = 0;  // norm of the summed gradients, before clipping
  RankSample sample;         // work of the rank, and the time that it took
};

/// The step of all ranks together.
struct StepFigures {
  double seconds = 0;  // from the first begin to the last end
  /// Mean over ranks of (waited_s + from computed_s to the latest rank's) / seconds.
  double idle_share = 0;
  /// Mean over ranks of 1 - processor_s / seconds: the share of a pinned rank's core that nobody
  /// used. Idle time less what the group's threads do meanwhile, and every other wait.
  double core_idle_share = 0;
  double loss = 0;           // sum over ranks, nats
  double gradient_norm = 0;  // norm on the first rank
};
StepFigures figures_of(std::span<const PlayedStep> ranks);

/// How far, relatively, the loss and the gradient norm of the same fp32 step may lie apart where
/// two programs compute it. As between two of our own kernels (tests/parity_test.cc): some 100
/// roundings one after another, and sums over all rows in another order, at 4 standard deviations;
/// of either side.
double same_step_bound(int64_t tokens);

/// The seconds of one arm, round by round.
Rates seconds_of(const std::vector<StepFigures>& rounds);
/// The arm with the lowest median over rounds; the first of equals. `seconds`: [arm][round].
size_t fastest(const std::vector<Rates>& seconds);

/// Runs one step, on all ranks; `round` counts from -1.
using ArmRun = std::function<StepFigures(int round)>;

/// [arm][round]. Each arm once a round, another one first each time; round -1 warms up and does not
/// count.
std::vector<std::vector<StepFigures>> interleaved_steps(std::span<const ArmRun> arms, int rounds);

}  // namespace distca::bench
