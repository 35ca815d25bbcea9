#include "distca/trace/chrome.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "distca/base/build_info.h"
#include "distca/base/error.h"
#include "distca/base/hash.h"
#include "distca/base/json.h"

namespace distca {
namespace {

constexpr int kComputeThread = 0;  // the threads of messages under way follow
/// In the order of TraceKind.
constexpr std::array kKindNames = {"step", "compute", "copy", "launch", "wait", "flight"};
static_assert(kKindNames.size() == static_cast<size_t>(TraceKind::kFlight) + 1);

int64_t nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

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
  add("tick", event.tick, -1);
  add("tag", event.tag, 0u);
  add("bytes", event.bytes, 0);
  add("received_bytes", event.received_bytes, 0);
  add("flops", event.flops, 0);
  add("from", event.from, std::vector<int>{});
  add("to", event.to, std::vector<int>{});
  return arguments.dump();
}

/// "worker of stage 2, tensor 1"
std::string words_of(const TraceRank& rank) {
  std::string words = rank.server ? "server" : "worker";
  if (rank.stage >= 0) words += fmt::format(" of stage {}", rank.stage);
  if (rank.tensor >= 0) words += fmt::format(", tensor {}", rank.tensor);
  return words;
}

/// Writes one rank's process; numbers its events' threads.
class RankWriter {
 public:
  RankWriter(int rank, const TraceRank& what, std::span<const TraceEvent> events) : rank_(rank) {
    metadata("process_name", 0, Json{{"name", fmt::format("rank {} ({})", rank, words_of(what))}});
    metadata("process_sort_index", 0, Json{{"sort_index", rank}});
    metadata("thread_name", kComputeThread, Json{{"name", "compute"}});
    for (const TraceEvent& event : events) write(event);
  }

  std::string text() const { return fmt::format("{}", fmt::join(lines_, ",\n")); }

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
        Json(event.name).dump(), kKindNames[static_cast<size_t>(event.kind)], rank_, thread,
        microseconds(begin), microseconds(end - begin), arguments(event)));
    if (event.kind == TraceKind::kLaunch) {
      for (const int receiver : event.to) arrow("s", event, rank_, receiver, begin, "");
    } else if (event.kind == TraceKind::kWait) {
      for (const int sender : event.from) {
        // Within the event, so that the arrow's head is drawn at it.
        arrow("f", event, sender, rank_, std::max(begin, end - 1), R"(,"bp":"e")");
      }
    }
  }

  /// One end of an arrow from the issue of a message to the end of the wait for it. Sender and
  /// receiver write theirs apart and give the message the same id.
  void arrow(const char* phase, const TraceEvent& event, int sender, int receiver, int64_t ns,
             const char* binding) {
    const std::string id =
        hash_hex(fmt::format("{} {} {} {}", event.step, event.tag, sender, receiver));
    lines_.push_back(fmt::format(
        R"({{"ph":"{}","name":"message","cat":"message","id":"{}","pid":{},"tid":{},"ts":{}{}}})",
        phase, id, rank_, kComputeThread, microseconds(ns), binding));
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

  int rank_;
  std::vector<std::string> lines_;
  std::vector<int64_t> flights_until_;
};

}  // namespace

std::string chrome_events(int rank, const TraceRank& what, std::span<const TraceEvent> events) {
  return RankWriter(rank, what, events).text();
}

std::string chrome_counter(int rank, const TraceCounter& counter) {
  DISTCA_CHECK(!counter.values.empty(), "counter {} of rank {} is empty", counter.name, rank);
  std::vector<std::string> lines;
  for (const TraceCounter::Value& value : counter.values) {
    lines.push_back(fmt::format(
        R"({{"ph":"C","name":"{}","pid":{},"tid":{},"ts":{},"args":{{"{}":{}}}}})", counter.name,
        rank, kComputeThread, microseconds(nanoseconds(value.at_s)), counter.unit, value.value));
  }
  return fmt::format("{}", fmt::join(lines, kChromeBetween));
}

std::string chrome_head(std::string_view overlap, const TraceKernel& kernel,
                        std::span<const TraceRank> ranks, const TracePrediction* predicted) {
  Json listed = Json::array();
  for (const TraceRank& rank : ranks) {
    listed.push_back({{"role", rank.server ? "server" : "worker"},
                      {"clock_offset_s", rank.clock_offset_s},
                      {"clock_drift", rank.clock_drift},
                      {"clock_uncertainty_s", rank.clock_uncertainty_s}});
    if (rank.stage >= 0) listed.back()["stage"] = rank.stage;
    if (rank.tensor >= 0) listed.back()["tensor"] = rank.tensor;
    if (rank.number >= 0) listed.back()["rank"] = rank.number;
  }
  Json other = {{"program", "distca"},
                {"version", build_info::kVersion},
                {"commit", build_info::kCommit},
                {"overlap", overlap},
                {"ranks", listed}};
  if (!kernel.name.empty()) other["kernel"] = kernel.name;
  if (!kernel.passed_over.empty()) other["kernel_passed_over"] = kernel.passed_over;
  if (predicted != nullptr) {
    other["predicted"] = {{"machine", predicted->machine},
                          {"num_ranks", predicted->num_ranks},
                          {"alike", predicted->alike}};
  }
  return fmt::format("{{\"displayTimeUnit\":\"ms\",\n\"otherData\":{},\n\"traceEvents\":[\n",
                     other.dump());
}

std::string chrome_json(std::string_view overlap, const TraceKernel& kernel,
                        std::span<const TraceRank> ranks, std::span<const std::string> events) {
  return fmt::format("{}{}{}", chrome_head(overlap, kernel, ranks),
                     fmt::join(events, kChromeBetween), kChromeTail);
}

}  // namespace distca
