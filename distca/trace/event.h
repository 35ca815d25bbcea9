#pragma once
// The events that runtime/executor records, or sim/step_events.h predicts: what happened on one
// rank, and when. Plain values; any thread.

#include <cstdint>
#include <string>
#include <vector>

namespace distca {

/// The kinds of events in which a rank's time is recorded. trace/chrome.cc names them.
enum class TraceKind : uint8_t {
  kStep,     // a whole step; all other events of the step lie within it
  kCompute,  // an operation of the compute stream
  kCopy,     // packing what is sent, or putting received rows in place
  kLaunch,   // handing messages to the group
  kWait,     // for an exchange's receives or sends, or inside a sum over ranks
  /// A message under way, on the communication stream: from issuing to the end of the wait. It may
  /// have ended earlier. A predicted one ends when it is there.
  kFlight,
};

/// One event.
struct TraceEvent {
  TraceKind kind = TraceKind::kCompute;
  std::string name;  // "forward layer 3 dispatch of nano-batch 1"
  double begin_s = 0;
  double end_s = 0;  // on the rank's steady clock (base/clock.h)
  int64_t step = 0;
  /// The place of the event's operation in the step. -1 means that it has none.
  int layer = -1;
  int micro_batch = -1;
  int nano_batch = -1;
  int tick = -1;  // the tick of a pipeline, as its index in the step
  /// The tag of an exchange; 0 for other events. Step, tag and peer identify the other side.
  uint32_t tag = 0;
  std::vector<int> from;  // ranks whose messages are awaited
  std::vector<int> to;    // ranks that messages are sent to
  int64_t bytes = 0;      // sent
  int64_t received_bytes = 0;
  double flops = 0;  // floating-point operations of a compute event
  bool operator==(const TraceEvent&) const = default;
};

}  // namespace distca
