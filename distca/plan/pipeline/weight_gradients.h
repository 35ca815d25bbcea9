#pragma once
// Gradients by matrices that wait. In backward of a layer, the next layer needs the gradient by its
// rows at once; nobody needs those by its matrices before the end of the step. So a stage may leave
// them where it is the slowest of its tick, and compute them in a later tick in which it would wait
// for others: most of all in fill and drain ticks.
//
//   request.outstanding_weight_gradients = 2;  // PipelineRequest request
//   const WeightGradients weights = plan_weight_gradients(request, ticks);
//   weights[tick][slot][stage].leaves  // those of the nano-batch that the stage plays there
//
// The types are plain values. Any thread may call the function.

#include <cstdint>
#include <span>
#include <vector>

#include "distca/plan/pipeline/ticks.h"

namespace distca {

struct PipelineRequest;

/// Weight gradients of a stage in a slot of a tick.
struct StageWeights {
  bool leaves = false;  // the stage leaves those of the nano-batch that it plays
  /// The nano-batches of which it computes what it has left, in order.
  std::vector<int> plays;
  bool operator==(const StageWeights&) const = default;
};

/// [ticks][slots][stages] Empty if none is left.
using WeightGradients = std::vector<std::vector<std::vector<StageWeights>>>;

/// Returns true if stages of the request may leave weight gradients: it trains, has several stages,
/// knows all speeds of attention, and its bound is above 0.
bool lets_weights_wait(const PipelineRequest& request);
/// The tolerance of such a request, where nobody has given one, by that of its scheduler.
constexpr int64_t tolerance_where_weights_wait(int64_t of_scheduler_ppm) {
  return of_scheduler_ppm / 2;
}

/// Decides what each stage leaves, and in which later tick it computes it, for both slots alike. At
/// any time, a slot of a stage has left those of at most request.outstanding_weight_gradients
/// nano-batches. The sum of the least lengths of all ticks (cost/finish_time.h) is to be small, and
/// then the linear work beyond the ranks' mean. Stages are decided in turn, several times: each as
/// is best for it as long as the others stay. A step in which more waits is taken only if it is
/// better by a thousandth of the longest weight gradients of a micro-batch. Counts linear work of
/// the slowest replica of each stage and core attention, by the request's speeds; ignores exchanges
/// and sums of gradients. Times are compared as integers, which have the same bits on every
/// machine.
WeightGradients plan_weight_gradients(const PipelineRequest& request, std::span<const Tick> ticks);

/// The most nano-batches of a stage, in all slots, whose weight gradients are left at a time.
int most_outstanding(const WeightGradients& weights, int stage);

/// Decides the same for stages that do not share core attention, with one slot. In a tick without a
/// micro-batch, such a stage waits: there it computes those of one nano-batch, the earliest of the
/// last `outstanding` ones (as zero-bubble schedules do). What finds no such tick is not left.
WeightGradients weight_gradients_in_idle_ticks(std::span<const Tick> ticks, int outstanding);

}  // namespace distca
