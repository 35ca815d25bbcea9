#pragma once
// The events that operations leave in a trace (trace/event.h): which there are, and what they say.
// runtime/executor records them of a step that runs, sim/step_events.h of one that is predicted, so
// both kinds of traces are read alike.
//
//   for (TraceEvent& event : start_events(program, op, pack, issue))
//     recorder.add(std::move(event));
//
// The step of each event is left to the caller. Any thread may call the functions.

#include <vector>

#include "distca/program/program.h"
#include "distca/trace/event.h"

namespace distca {

/// From when to when. In seconds, or in whatever the caller makes seconds of later.
struct TraceSpan {
  double begin_s = 0, end_s = 0;
};

/// Returns true if a rank puts in place or adds up what operations of this kind receive: what comes
/// home (kCombine), from another stage (kP2p), or as parts of rows (kSumRows). All else is read
/// where it lies.
bool lands(OpKind kind);

/// An operation of the compute stream.
TraceEvent compute_event(const Program& program, const Op& op, const TraceSpan& play);
/// The start of a communication: packing, where it sends something, and handing the messages over.
/// There are none of one without messages.
std::vector<TraceEvent> start_events(const Program& program, const Op& op, const TraceSpan& pack,
                                     const TraceSpan& issue);
/// The wait for all that a communication receives, its messages under way, and putting in place.
/// There are none of one that receives nothing.
std::vector<TraceEvent> receive_events(const Program& program, const Op& op, const TraceSpan& wait,
                                       const TraceSpan& flight, const TraceSpan& land);
/// The wait until all that a communication sends has left and, where it receives nothing, its
/// messages under way. There are none of one that sends nothing.
std::vector<TraceEvent> send_events(const Program& program, const Op& op, const TraceSpan& wait,
                                    const TraceSpan& flight);

}  // namespace distca
