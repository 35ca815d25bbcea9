#pragma once
// What happened on one rank: the events that runtime/executor records. Plain values, any thread.

#include <cstdint>
#include <string>
#include <vector>

namespace distca {

/// What a rank's time went to.
enum class TraceKind : uint8_t {
  kStep,     // a whole step; all others of the step lie within it
  kCompute,  // an operation of the compute stream
  kCopy,     // packing what travels, putting in place what came home
  kLaunch,   // handing messages to the group
  kWait,     // for an exchange's receives or sends, or inside a sum over ranks
  kFlight,   // communication stream: from issuing to the end of the wait; the true end may be
             // earlier
};

struct TraceEvent {
  TraceKind kind = TraceKind::kCompute;
  std::string name;  // "forward layer 3 dispatch of nano-batch 1"
  double begin_s = 0;
  double end_s = 0;  // on the rank's steady clock, base/clock.h
  int64_t step = 0;
  int layer = -1;
  int micro_batch = -1;
  int nano_batch = -1;
  uint32_t tag = 0;       // of an exchange; 0 else. With step and peer it names the other side
  std::vector<int> from;  // ranks whose messages are awaited
  std::vector<int> to;    // ranks that are sent to
  int64_t bytes = 0;      // sent
  int64_t received_bytes = 0;
  double flops = 0;
  bool operator==(const TraceEvent&) const = default;
};

const char* trace_kind_name(TraceKind kind);

}  // namespace distca
