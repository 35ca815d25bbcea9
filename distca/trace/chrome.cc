#include "distca/trace/chrome.h"

#include <algorithm>
#include <cmath>

#include "distca/base/json.h"
#include "distca/trace/issues.h"

namespace distca {
namespace {

constexpr int kComputeThread = 0;  // those of messages under way follow

/// Microseconds, all digits of the nanosecond.
std::string microseconds(int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

std::string arguments(const TraceEvent& event) {
  Json arguments = {{"step", event.step}};
  const auto add = [&](const char* key, auto value, auto absent) {
    if (value != absent) arguments[key] = value;
  };
  add("layer", event.layer, -1);
  add("micro_batch", event.micro_batch, -1);
  add("nano_batch", event.nano_batch, -1);
  add("tag", event.tag, 0u);
  add("bytes", event.bytes, 0);
  add("received_bytes", event.received_bytes, 0);
  add("flops", event.flops, 0);
  add("from", event.from, std::vector<int>{});
  add("to", event.to, std::vector<int>{});
  return arguments.dump();
}

/// Writes one rank's process; numbers its events' threads.
class RankWriter {
 public:
  RankWriter(std::vector<std::string>& lines, int rank, const TraceRank& events)
      : lines_(lines), rank_(rank) {
    metadata(
        "process_name", 0,
        Json{{"name", fmt::format("rank {} ({})", rank, events.server ? "server" : "worker")}});
    metadata("process_sort_index", 0, Json{{"sort_index", rank}});
    metadata("thread_name", kComputeThread, Json{{"name", "compute"}});
    for (const TraceEvent& event : events.events) write(event);
  }

 private:
  void metadata(const char* name, int thread, const Json& arguments) {
    lines_.push_back(fmt::format(R"({{"ph":"M","name":"{}","pid":{},"tid":{},"args":{}}})", name,
                                 rank_, thread, arguments.dump()));
  }

  void write(const TraceEvent& event) {
    const int64_t begin = nanoseconds(event.begin_s), end = nanoseconds(event.end_s);
    const int thread =
        event.kind == TraceKind::kFlight ? flight_thread(begin, end) : kComputeThread;
    lines_.push_back(fmt::format(
        R"({{"ph":"X","name":{},"cat":"{}","pid":{},"tid":{},"ts":{},"dur":{},"args":{}}})",
        Json(event.name).dump(), trace_kind_name(event.kind), rank_, thread, microseconds(begin),
        microseconds(end - begin), arguments(event)));
  }

  /// Events of one thread must not overlap, messages under way do: the first thread that is free.
  int flight_thread(int64_t begin, int64_t end) {
    const auto free =
        std::ranges::find_if(flights_until_, [&](int64_t until) { return until <= begin; });
    const int thread = kComputeThread + 1 + static_cast<int>(free - flights_until_.begin());
    if (free == flights_until_.end()) {
      flights_until_.push_back(end);
      metadata("thread_name", thread,
               Json{{"name", thread == kComputeThread + 1
                                 ? std::string("communication")
                                 : fmt::format("communication {}", thread - kComputeThread)}});
    } else {
      *free = end;
    }
    return thread;
  }

  std::vector<std::string>& lines_;
  int rank_;
  std::vector<int64_t> flights_until_;
};

/// Arrows from the issue of each message to the end of the wait for it.
void write_arrows(const Trace& trace, std::vector<std::string>& lines) {
  std::vector<const std::vector<TraceEvent>*> events;
  for (const TraceRank& rank : trace.ranks) events.push_back(&rank.events);
  const Issues issues(events);
  int64_t id = 0;
  const auto arrow = [&](const char* phase, int rank, int64_t ns, const char* binding) {
    lines.push_back(fmt::format(
        R"({{"ph":"{}","name":"message","cat":"message","id":{},"pid":{},"tid":{},"ts":{}{}}})",
        phase, id, rank, kComputeThread, microseconds(ns), binding));
  };
  for (int rank = 0; rank < static_cast<int>(trace.ranks.size()); ++rank) {
    for (const TraceEvent& wait : trace.ranks[rank].events) {
      if (wait.kind != TraceKind::kWait) continue;
      for (int sender : wait.from) {
        const TraceEvent* issue = issues.of(sender, wait.step, wait.tag);
        if (issue == nullptr || std::ranges::find(issue->to, rank) == issue->to.end()) continue;
        ++id;
        const int64_t begin = nanoseconds(wait.begin_s), end = nanoseconds(wait.end_s);
        arrow("s", sender, nanoseconds(issue->begin_s), "");
        // Within the event, so that the arrow's head is drawn at it.
        arrow("f", rank, std::max(begin, end - 1), R"(,"bp":"e")");
      }
    }
  }
}

}  // namespace

int64_t nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

std::string chrome_json(const Trace& trace) {
  Json ranks = Json::array();
  for (const TraceRank& rank : trace.ranks) {
    ranks.push_back({{"role", rank.server ? "server" : "worker"},
                     {"clock_offset_s", rank.clock_offset_s},
                     {"clock_drift", rank.clock_drift},
                     {"clock_uncertainty_s", rank.clock_uncertainty_s}});
  }
  const Json other = {{"program", "distca"},
                      {"version", trace.version},
                      {"commit", trace.commit},
                      {"overlap", trace.overlap},
                      {"ranks", ranks}};
  std::vector<std::string> lines;
  for (int rank = 0; rank < static_cast<int>(trace.ranks.size()); ++rank)
    RankWriter(lines, rank, trace.ranks[rank]);
  write_arrows(trace, lines);
  return fmt::format(
      "{{\"displayTimeUnit\":\"ms\",\n\"otherData\":{},\n\"traceEvents\":[\n{}\n]}}\n",
      other.dump(), fmt::join(lines, ",\n"));
}

}  // namespace distca
