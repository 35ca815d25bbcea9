#include "distca/train/step_tracer.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/base/machine.h"
#include "distca/comm/collectives.h"
#include "distca/forecast/predicted_trace.h"

namespace distca {
namespace {

/// The nearest folder above `file` that is there.
std::filesystem::path folder_of(const std::filesystem::path& file) {
  std::error_code no_current_folder;
  std::filesystem::path folder = std::filesystem::absolute(file, no_current_folder).parent_path();
  std::error_code denied;  // if a folder cannot be looked at, writing fails and says why
  while (folder.has_relative_path() && !std::filesystem::exists(folder, denied) && !denied)
    folder = folder.parent_path();
  return folder;
}

/// The last step to be traced, of a run that goes on after this one.
int64_t last_step(const Config& config, int64_t goes_on_after = 0) {
  return goes_on_after + config.train.trace_first_step + config.train.trace_steps - 1;
}

}  // namespace

void check_trace(const Config& config) {
  const std::filesystem::path file = config.train.trace;
  if (file.empty()) return;
  DISTCA_THROW_IF(last_step(config) > config.train.steps, ErrorKind::kConfig,
                  "train.trace: steps {} to {} are to be traced, the run has {}: raise train.steps "
                  "or lower train.trace_first_step, train.trace_steps",
                  config.train.trace_first_step, last_step(config), config.train.steps);
  std::error_code ignored;
  const std::filesystem::file_status there = std::filesystem::status(file, ignored);
  DISTCA_THROW_IF(std::filesystem::is_directory(there), ErrorKind::kConfig,
                  "train.trace = {}: it is a folder, a file is wanted", file.string());
  // A device or a pipe is written into when the trace is there, as by any AtomicFile.
  if (std::filesystem::exists(there) && !std::filesystem::is_regular_file(there)) return;
  try {
    AtomicFile(folder_of(file) / "trace.json");  // leaves nothing
  } catch (const Error& error) {
    throw Error(ErrorKind::kConfig, "train.trace = {}: cannot be written: {}", file.string(),
                error.what());
  }
}

StepTracer::StepTracer(const Config& config, Communicator& comm, const RunGrid& run,
                       int64_t goes_on_after)
    : config_(config),
      comm_(comm),
      run_(run),
      last_(!config.train.trace.empty() && last_step(config, goes_on_after) <= config.train.steps
                ? last_step(config, goes_on_after)
                : 0),
      first_(last_ - config.train.trace_steps + 1) {}

void StepTracer::begin_step(int64_t step) {
  if (step < first_ || step > last_) return;
  if (step == first_) {
    constexpr const char* kAligning = "clock alignment";
    const std::string clock = steady_clock_id();  // "" if it is unknown
    same_clock_ = all_gather_texts(comm_, clock, kAligning)[0] == clock && !clock.empty();
    origin_s_ = all_gather(comm_, steady_seconds(), kAligning)[0];
    before_ = read_clock();
  }
  recorder_.set_step(step);
  step_ = step;
  tracing_ = true;
  step_begin_s_ = steady_seconds();
}

void StepTracer::waited(std::string what, double begin_s) {
  if (!tracing_) return;
  recorder_.add({.kind = TraceKind::kWait,
                 .name = std::move(what),
                 .begin_s = begin_s,
                 .end_s = steady_seconds()});
}

void StepTracer::end_step() {
  if (!tracing_) return;
  tracing_ = false;
  recorder_.add({.kind = TraceKind::kStep,
                 .name = fmt::format("step {}", step_),
                 .begin_s = step_begin_s_,
                 .end_s = steady_seconds()});
  if (step_ == last_) gather();
}

ClockReading StepTracer::read_clock() {
  ClockReading reading = read_clock_offset(comm_);
  // Ranks of one machine know better than round trips do, which must not contradict it.
  if (same_clock_ && std::abs(reading.offset_s) <= reading.uncertainty_s) {
    reading.offset_s = reading.uncertainty_s = 0;
  }
  return reading;
}

void StepTracer::gather() {
  const AlignedClock clock(before_, read_clock());
  TraceRank mine = trace_rank(run_, comm_.rank());
  mine.clock_offset_s = before_.offset_s;
  mine.clock_drift = clock.drift();
  mine.clock_uncertainty_s = clock.uncertainty_s();
  std::vector<TraceEvent> events = recorder_.events();
  for (TraceEvent& event : events) {
    // No clock is off by more than its uncertainty: nothing before the first step but by that.
    event.begin_s = std::max(0.0, clock.on_rank_0(event.begin_s) - origin_s_);
    event.end_s = std::max(event.begin_s, clock.on_rank_0(event.end_s) - origin_s_);
  }
  std::ranges::stable_sort(
      events, {}, [](const TraceEvent& event) { return std::pair(event.begin_s, -event.end_s); });
  ranks_ = all_gather(comm_, mine, "trace");
  gathered_ = gather_texts(comm_, chrome_events(comm_.rank(), mine, events), "trace");
}

std::string StepTracer::missing() const {
  const std::string& file = config_.train.trace;
  if (file.empty() || last_ > 0) return "";
  return fmt::format(
      "no {}: fewer steps are left than train.trace_first_step, train.trace_steps ask for", file);
}

std::string StepTracer::write(const TraceKernel& kernel) {
  const std::string& file = config_.train.trace;
  if (gathered_.empty() && last_ > 0)
    return fmt::format("no {}: the run ended before step {}, the last to be traced", file, last_);
  if (gathered_.empty()) return missing();
  write_file_atomically(
      file, chrome_json(overlap_name(config_.train.overlap), kernel, ranks_, gathered_));
  return fmt::format("{0}  steps {1} to {2}: distca trace {0}, or ui.perfetto.dev", file, first_,
                     last_);
}

}  // namespace distca
