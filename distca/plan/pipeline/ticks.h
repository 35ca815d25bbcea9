#pragma once
// The schedule of a pipeline: which stage works on what, and when (paper 4.1, figure 8).
//
//   const Grid grid{.stages = 4, .replicas = 2};  // eight workers
//   const std::vector<Tick> ticks =
//       aligned_ticks(grid.stages, /*micro_batches=*/8, /*trains=*/true);  // 11 ticks a pass
//
// Words. A stage is a run of neighbouring layers. Its replicas are the workers that hold these
// layers. A micro-batch is what a stage plays together: the pair of nano-batches of ping-pong, of
// which the last may lack the second, or one nano-batch; a slot is the place of a nano-batch in it,
// 0 or 1. In a tick, each stage works on at most one micro-batch. A stage that has none serves core
// attention for the others. Fill and drain ticks are those in which any stage has none.
//
// The types are plain values. Any thread may call the functions.

#include <span>
#include <vector>

#include "distca/cost/pass.h"

namespace distca {

/// The places of all ranks: the workers of stage 0, those of stage 1, and so on, and then the
/// dedicated servers, which belong to no stage.
struct Grid {
  int stages = 1;
  int replicas = 1;   // workers of a stage
  int dedicated = 0;  // servers without weights

  int num_workers() const { return stages * replicas; }
  int num_ranks() const { return num_workers() + dedicated; }
  int rank(int stage, int replica) const { return stage * replicas + replica; }
  /// The stage and the replica of a rank in 0 .. num_ranks() - 1. Both are -1 for a dedicated
  /// server.
  int stage(int rank) const { return rank < num_workers() ? rank / replicas : -1; }
  int replica(int rank) const { return rank < num_workers() ? rank % replicas : -1; }
  bool operator==(const Grid&) const = default;
};

/// The work of one stage in a tick.
struct TickStage {
  int micro_batch = -1;  // index in the step; -1 if the stage has none and only serves
  Pass pass = Pass::kForward;
  int virtual_stage = 0;  // whose layers it plays, of those that the stage holds
  bool operator==(const TickStage&) const = default;
};

struct Tick {
  std::vector<TickStage> stages;  // [stages]
  int num_working() const;        // stages that have a micro-batch
  bool operator==(const Tick&) const = default;
};

/// The phase-aligned order: in a tick, all stages play the same pass. Stage s works on micro-batch
/// k - s in forward tick k, and on b - (stages - 1 - s) in backward tick b; each pass has
/// micro_batches + stages - 1 ticks. The first stages - 1 ticks are forward, then forward and
/// backward take turns, and the last stages - 1 are backward. With `trains` false there are forward
/// ticks alone, as evaluation plays them. Both numbers must be at least 1 (CHECK).
std::vector<Tick> aligned_ticks(int stages, int micro_batches, bool trains);

/// 1F1B in lockstep: stage s plays stages - 1 - s forwards, then a forward and a backward in turn,
/// each once its input was made in an earlier tick.
std::vector<Tick> one_forward_one_backward_ticks(int stages, int micro_batches);

/// Interleaved 1F1B in lockstep, as Megatron-LM orders it. A stage holds several virtual stages,
/// runs of layers that lie `stages` runs apart. Forward of `stages` micro-batches goes through one
/// of them after another before the next micro-batches come, backward in the opposite order. Stage
/// s plays 2 (stages - 1 - s) + (virtual_stages - 1) stages forwards, then a forward and a backward
/// in turn, each once its input was made in an earlier tick. The micro-batches are a multiple of
/// the stages (CHECK).
std::vector<Tick> interleaved_ticks(int stages, int virtual_stages, int micro_batches);

/// The most micro-batches that a stage holds at any time: those whose forward has begun and whose
/// backward is not over, each as often as it has virtual stages there. For aligned_ticks that train
/// it is min(micro_batches, 2 (stages - 1 - stage) + 1).
int most_in_flight(std::span<const Tick> ticks, int stage);

}  // namespace distca
