#pragma once
// Traces as files in Chrome's trace event format (JSON, object form), which Perfetto and
// chrome://tracing open. A rank is shown as a process. It has a thread for compute, and as many
// threads for messages under way as overlap. Arrows lead from where an exchange was issued to where
// it had landed.
//
//     const Trace trace = read_trace("trace.json");
//     write_file_atomically("copy.json", chrome_json(trace));
//
// Times are kept to the nanosecond: events whose times are whole nanoseconds are read back exactly.
// Reading needs memory for the text, the result, and one event at a time. Any thread may call these
// functions.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "distca/trace/event.h"

namespace distca {

/// The events of one rank, and how its clock was put on rank 0's.
struct TraceRank {
  bool server = false;  // a dedicated server, which holds no weights
  /// Seconds that were added to this rank's clock, at its first event, to get rank 0's.
  double clock_offset_s = 0;
  double clock_drift = 0;          // seconds that the offset grows in a second
  double clock_uncertainty_s = 0;  // the largest error of the offset
  std::vector<TraceEvent> events;  // ascending begin
  bool operator==(const TraceRank&) const = default;
};

/// The events of all ranks on one clock. It begins with the first event, so no time is below 0.
struct Trace {
  std::string version, commit;  // of the program that was traced
  std::string overlap;          // train.overlap
  std::vector<TraceRank> ranks;
  bool operator==(const Trace&) const = default;
};

/// The file's text, with one event a line.
std::string chrome_json(const Trace& trace);
/// Reads what chrome_json wrote. Throws Error(kData) for any other text: one line with `name` and
/// what is wrong.
Trace trace_from_chrome_json(std::string_view text, const std::string& name);
/// Reads and parses a file, as above.
Trace read_trace(const std::filesystem::path& path);

/// A time in seconds as whole nanoseconds.
int64_t nanoseconds(double seconds);

}  // namespace distca
