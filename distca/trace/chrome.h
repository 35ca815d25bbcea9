#pragma once
// Traces as files in Chrome's trace event format (JSON, object form), which Perfetto and
// chrome://tracing open. A rank is shown as a process. It has a thread for compute, and as many
// threads for messages under way as overlap. Arrows lead from where an exchange was issued to where
// it had landed. cli/distca_trace.py reads these files. Any thread may call these functions.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "distca/trace/event.h"

namespace distca {

/// The role of a rank, and how its clock was put on rank 0's.
struct TraceRank {
  bool server = false;  // a dedicated server, which holds no weights
  int stage = -1;       // index in the pipeline. -1 without one, and for a dedicated server.
  int tensor = -1;      // index in its server. -1 without tensor parallelism.
  /// Seconds that were added to this rank's clock, at its first event, to get rank 0's.
  double clock_offset_s = 0;
  double clock_drift = 0;          // seconds that the offset grows in a second
  double clock_uncertainty_s = 0;  // the largest error of the offset
  /// Its number in the run, where the file has not all ranks of that. -1 means its place in the
  /// list.
  int number = -1;
};

/// The step that a trace predicts (sim/step_events.h), where it is not one that was measured.
struct TracePrediction {
  std::string machine;  // by whose prices (cost/machine.h)
  int num_ranks = 0;    // the ranks of the run
  /// So many neighbouring ranks do the same at the same time, and the first of them stands for all.
  int alike = 1;
};

/// The part of the file that one rank adds, with one event a line. Events ascend by their begin.
/// Those of all ranks are on one clock, and no time is below 0. Times are kept to the nanosecond.
std::string chrome_events(int rank, const TraceRank& what, std::span<const TraceEvent> events);

/// A number of a rank that changes in the course of the steps.
struct TraceCounter {
  const char* name;
  const char* unit;
  struct Value {
    double at_s;  // it holds until the next one
    int64_t value;
  };
  std::vector<Value> values;  // ascending by their time
};
/// Lines that may follow the rank's events, behind kChromeBetween: each value is one. Readers of
/// steps leave them out; Perfetto draws them. There is a value (CHECK).
std::string chrome_counter(int rank, const TraceCounter& counter);

/// The kernel that computed attention, in AttentionKernel's words. Empty where nobody knows it.
struct TraceKernel {
  std::string_view name = {};
  std::string_view passed_over = {};  // why a faster one computed nothing, where one did not
};

/// A file that is written part by part is chrome_head, the chrome_events of each rank with
/// kChromeBetween between them, and kChromeTail. The head says what each rank is, which kernel
/// computed attention and, with `predicted`, that nothing of it was measured.
std::string chrome_head(std::string_view overlap, const TraceKernel& kernel,
                        std::span<const TraceRank> ranks,
                        const TracePrediction* predicted = nullptr);
inline constexpr std::string_view kChromeBetween = ",\n";
inline constexpr std::string_view kChromeTail = "\n]}\n";

/// The text of a whole file.
std::string chrome_json(std::string_view overlap, const TraceKernel& kernel,
                        std::span<const TraceRank> ranks, std::span<const std::string> events);

}  // namespace distca
