#pragma once
// For tests: two ranks that exchange once and sum once in a step of a hundred microseconds.

#include "distca/trace/chrome.h"

namespace distca::testing {

/// From `begin` to `end` microseconds, in step 1.
inline TraceEvent event(TraceKind kind, const char* name, int begin, int end) {
  return {.kind = kind,
          .name = name,
          .begin_s = begin * 1000 / 1e9,
          .end_s = end * 1000 / 1e9,
          .step = 1};
}

inline TraceEvent exchange_event(TraceKind kind, int begin, int end, std::vector<int> peers) {
  TraceEvent made = event(kind, "forward layer 3 dispatch of nano-batch 1", begin, end);
  made.layer = 3;
  made.nano_batch = 1;
  made.tag = 7;
  made.from = peers;
  if (kind != TraceKind::kWait) {
    made.to = peers;
    made.bytes = 1000;
    made.received_bytes = 2000;
  }
  return made;
}

/// Rank 0 has issued at 12 us, rank 1 at 50 us; rank 0 waits from 20 to 60 us for rank 1, which
/// never waits. In the sum rank 1 comes at 80 us, rank 0 waits from 70 to 95 us.
inline Trace two_rank_trace() {
  TraceEvent attention =
      event(TraceKind::kCompute, "forward layer 3 core_attention of nano-batch 0", 13, 20);
  attention.layer = 3;
  attention.nano_batch = 0;
  attention.micro_batch = 0;
  attention.flops = 7e3;
  TraceEvent sum = event(TraceKind::kWait, "gradient sum", 70, 95);
  sum.tag = 1u << 30;
  sum.from = {1};
  TraceEvent summed = event(TraceKind::kLaunch, "gradient sum", 79, 80);
  summed.tag = sum.tag;
  summed.to = {0};
  Trace trace{.version = "1.2", .commit = "abc", .overlap = "within", .ranks = {}};
  trace.ranks.resize(2);
  trace.ranks[0].events = {
      event(TraceKind::kStep, "step", 0, 100),
      event(TraceKind::kWait, "plan", 1, 4),
      event(TraceKind::kCopy, "forward layer 3 dispatch of nano-batch 1", 8, 10),
      exchange_event(TraceKind::kLaunch, 10, 12, {1}),
      exchange_event(TraceKind::kFlight, 12, 60, {1}),
      attention,
      exchange_event(TraceKind::kWait, 20, 60, {1}),
      event(TraceKind::kCompute, "grad_reduce", 62, 97),
      sum};
  trace.ranks[1] = {.server = true,
                    .clock_offset_s = -0.125,
                    .clock_drift = 1e-6,
                    .clock_uncertainty_s = 2e-6,
                    .events = {event(TraceKind::kStep, "step", 0, 100),
                               event(TraceKind::kCompute, "forward \"pre\"", 0, 48),
                               exchange_event(TraceKind::kLaunch, 48, 50, {0}),
                               event(TraceKind::kCompute, "grad_reduce", 78, 99), summed}};
  return trace;
}

}  // namespace distca::testing
