#pragma once
// The work of a rank in each tick of a traced step, for a picture. Plain values, any thread.

#include <vector>

#include "bench/pipeline_setup.h"
#include "distca/base/json.h"
#include "distca/trace/event.h"

namespace distca::bench {

struct TickSpan {
  int tick = 0;
  /// Begin of its first and end of its last operation in the tick. Spans overlap: where a stage has
  /// two slots, the first may begin the next tick before the second ends this one.
  double begin_s = 0, end_s = 0;
  Pass pass = Pass::kForward;
  /// The micro-batch that this rank's stage plays. -1 means that the rank only serves others.
  int micro_batch = -1;
  double linear_s = 0;  // all operations but core attention
  double own_s = 0;     // core attention of its own rows
  double served_s = 0;  // core attention of rows of other ranks
  bool operator==(const TickSpan&) const = default;
};

/// Ticks in which the rank does anything, in their order. `events`: those that the executor
/// recorded while it played the program.
std::vector<TickSpan> tick_spans(const PacedStep& step, int rank, const Program& program,
                                 const std::vector<TraceEvent>& events);
Json json_of(const TickSpan& span);

}  // namespace distca::bench
