#pragma once
// Traces as files: Chrome's trace event format (JSON, object form), which Perfetto and
// chrome://tracing open. A rank is a process with a thread for compute and, for messages under way,
// as many as overlap. Arrows lead from where an exchange was issued to where it had landed.
//
// Times are kept to the nanosecond: events whose times are whole nanoseconds come back exactly.
// Reading holds the text and one event of it at a time besides the result. Any thread.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "distca/trace/event.h"

namespace distca {

struct TraceRank {
  bool server = false;             // dedicated: holds no weights
  double clock_offset_s = 0;       // added to this rank's clock at its first event to get rank 0's
  double clock_drift = 0;          // seconds gained on that offset in a second
  double clock_uncertainty_s = 0;  // the offset is right to within this
  std::vector<TraceEvent> events;  // ascending begin
  bool operator==(const TraceRank&) const = default;
};

/// All ranks on one clock, which begins with their first event: no time is below 0.
struct Trace {
  std::string version, commit;  // of the program that was traced
  std::string overlap;
  std::vector<TraceRank> ranks;
  bool operator==(const Trace&) const = default;
};

/// One event a line.
std::string chrome_json(const Trace& trace);
/// What chrome_json wrote. Anything else: Error(kData), one line with `name` and what is wrong.
Trace trace_from_chrome_json(std::string_view text, const std::string& name);
Trace read_trace(const std::filesystem::path& path);

/// Whole nanoseconds of a time in seconds.
int64_t nanoseconds(double seconds);

}  // namespace distca
