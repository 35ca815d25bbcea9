#pragma once
// The trace of a predicted step as a file (trace/chrome.h, sim/step_events.h), which `distca trace`
// and Perfetto read as one of a step that ran. It also has the memory of each rank over the step.
//
//   const TraceRequest request{.write = [&](std::string_view part) { file.write(part); }};
//   simulate_step(config, batch, num_workers, machine, {.trace = &request});  // simulate_run.h
//
// Any thread may call the functions.

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "distca/config/config.h"
#include "distca/config/run_grid.h"
#include "distca/cost/machine.h"
#include "distca/program/program.h"
#include "distca/sim/player.h"
#include "distca/sim/prices.h"
#include "distca/trace/chrome.h"

namespace distca {

/// The most lines of a trace that has all ranks. Who reads one holds all its events in memory.
inline constexpr int64_t kMostTraceLines = 2'000'000;

/// How a predicted step is written.
struct TraceRequest {
  int64_t step = 1;                             // its number
  std::function<void(std::string_view)> write;  // gets the parts of the file in order
  int64_t most_lines = kMostTraceLines;
};

/// A step that was played.
struct PlayedStep {
  const RunGrid& run;
  std::span<const Program> programs;  // all ranks' or those of the first of each server
  const OpPrices& prices;
  const TimedStep& step;
};

/// The role and place of a rank, on a clock of its own.
TraceRank trace_rank(const RunGrid& run, int rank);

/// Writes the file, and returns the ranks that it has: those that were played or, where these would
/// make more lines than asked for, of each stage, and of the dedicated servers, the one that
/// computes longest. Throws what `write` throws.
std::vector<int> write_trace(const Config& config, const Machine& machine, const PlayedStep& played,
                             const TraceRequest& request);

}  // namespace distca
