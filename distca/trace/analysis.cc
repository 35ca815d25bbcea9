#include "distca/trace/analysis.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "distca/base/error.h"
#include "distca/trace/issues.h"

namespace distca {
namespace {

struct Interval {
  int64_t begin = 0, end = 0;
};

/// Length of the union of `intervals` without `holes`, which do not overlap each other and ascend.
int64_t covered_ns(std::vector<Interval> intervals, const std::vector<Interval>& holes) {
  std::ranges::sort(intervals, {}, &Interval::begin);
  int64_t covered = 0, until = INT64_MIN;
  size_t hole = 0;
  for (const Interval& interval : intervals) {
    const int64_t begin = std::max(interval.begin, until);
    if (interval.end <= begin) continue;
    covered += interval.end - begin;
    while (hole < holes.size() && holes[hole].end <= begin) ++hole;
    for (; hole < holes.size() && holes[hole].begin < interval.end; ++hole) {
      covered -= std::min(holes[hole].end, interval.end) - std::max(holes[hole].begin, begin);
      if (holes[hole].end > interval.end) break;  // goes on in the next interval
    }
    until = interval.end;
  }
  return covered;
}

/// A step of a rank with the events that lie within it, ascending begin, the outer one first.
struct StepEvents {
  int rank = 0;
  Interval span;
  std::vector<const TraceEvent*> events;
};

class Analyser {
 public:
  explicit Analyser(const Trace& trace)
      : num_ranks_(trace.ranks.size()), issues_(events_of(trace)) {}

  RankStep add(const StepEvents& step) {
    current_ = RankStep{.waited_for_ns = std::vector<int64_t>(num_ranks_)};
    rank_ = step.rank;
    waits_.clear();
    std::vector<Interval> flights;
    std::vector<Open> open = {{nullptr, step.span.end}};
    int64_t cursor = step.span.begin;
    const auto close = [&] {
      take(open.back().event, {cursor, open.back().end});
      cursor = open.back().end;
      open.pop_back();
    };
    for (const TraceEvent* event : step.events) {
      const Interval span = clipped(*event, step.span);
      if (event->kind == TraceKind::kFlight) {
        flights.push_back(span);
        continue;
      }
      while (open.size() > 1 && open.back().end <= span.begin) close();
      take(open.back().event, {cursor, span.begin});
      cursor = span.begin;
      open.push_back({event, std::min(span.end, open.back().end)});
      count(*event);
    }
    while (!open.empty()) close();
    current_.hidden_ns = covered_ns(std::move(flights), waits_);
    return std::move(current_);
  }

  void finish(TraceAnalysis& analysis) {
    for (auto& [name, operation] : operations_) analysis.operations.push_back(operation);
    std::ranges::stable_sort(analysis.operations, std::greater(), [](const OperationTimes& times) {
      return std::accumulate(times.rank_ns.begin(), times.rank_ns.end(), int64_t{0});
    });
    for (auto& [key, exchange] : exchanges_) analysis.exchanges.push_back(exchange);
    std::ranges::stable_sort(analysis.exchanges, std::greater(), [](const ExchangeTimes& times) {
      return std::pair(times.exposed_ns, times.imbalance_ns);
    });
    analysis.unmatched_waits = unmatched_waits_;
  }

 private:
  struct Open {
    const TraceEvent* event;  // null: the step itself
    int64_t end;
  };

  static Issues events_of(const Trace& trace) {
    std::vector<const std::vector<TraceEvent>*> events;
    for (const TraceRank& rank : trace.ranks) events.push_back(&rank.events);
    return Issues(events);
  }

  static Interval clipped(const TraceEvent& event, const Interval& step) {
    const int64_t begin = std::clamp(nanoseconds(event.begin_s), step.begin, step.end);
    return {begin, std::clamp(nanoseconds(event.end_s), begin, step.end)};
  }

  int64_t& part(StepPart part) { return current_.parts.ns[static_cast<int>(part)]; }

  ExchangeTimes& exchange(const TraceEvent& event) {
    const std::string name = operation_name(event);
    ExchangeTimes& times = exchanges_[{name, event.layer, event.nano_batch}];
    times.name = name;
    times.layer = event.layer;
    times.nano_batch = event.nano_batch;
    return times;
  }

  OperationTimes& operation(const TraceEvent& event) {
    const std::string name = operation_name(event);
    OperationTimes& times = operations_[name];
    times.name = name;
    times.rank_ns.resize(num_ranks_);
    return times;
  }

  void count(const TraceEvent& event) {
    if (event.kind == TraceKind::kCompute) {
      OperationTimes& times = operation(event);
      times.flops += event.flops;
      ++times.count;
    } else if (event.kind == TraceKind::kLaunch) {
      current_.bytes += event.bytes;
      current_.received_bytes += event.received_bytes;
      exchange(event).bytes += event.bytes;
    }
  }

  /// A stretch of time in which `event` was the innermost one.
  void take(const TraceEvent* event, Interval stretch) {
    const int64_t ns = stretch.end - stretch.begin;
    if (ns <= 0) return;
    if (event == nullptr) {
      part(StepPart::kGap) += ns;
    } else if (event->kind == TraceKind::kWait) {
      take_wait(*event, stretch);
    } else if (event->kind == TraceKind::kCopy) {
      part(StepPart::kCopy) += ns;
    } else if (event->kind == TraceKind::kLaunch) {
      part(StepPart::kIssue) += ns;
    } else {
      part(StepPart::kCompute) += ns;
      operation(*event).rank_ns[rank_] += ns;
    }
  }

  void take_wait(const TraceEvent& wait, Interval stretch) {
    waits_.push_back(stretch);
    const std::vector<int>& awaited = wait.from.empty() ? wait.to : wait.from;
    if (awaited.empty()) {
      part(StepPart::kOther) += stretch.end - stretch.begin;
      return;
    }
    int64_t all_issued = INT64_MIN;
    int last = -1;
    bool matched = true;
    for (int peer : awaited) {
      const TraceEvent* issue = issues_.of(peer, wait.step, wait.tag);
      matched = matched && issue != nullptr;
      if (issue == nullptr || nanoseconds(issue->end_s) <= all_issued) continue;
      all_issued = nanoseconds(issue->end_s);
      last = peer;
    }
    unmatched_waits_ += matched ? 0 : 1;
    const int64_t turn = std::clamp(all_issued, stretch.begin, stretch.end);
    part(StepPart::kImbalance) += turn - stretch.begin;
    if (last >= 0) current_.waited_for_ns[last] += turn - stretch.begin;
    // Exchanges of the program belong to a layer, sums over ranks to none.
    part(wait.layer < 0 ? StepPart::kSum : StepPart::kExposed) += stretch.end - turn;
    ExchangeTimes& times = exchange(wait);
    times.imbalance_ns += turn - stretch.begin;
    times.exposed_ns += stretch.end - turn;
  }

  size_t num_ranks_;
  Issues issues_;
  std::map<std::string, OperationTimes> operations_;
  std::map<std::tuple<std::string, int, int>, ExchangeTimes> exchanges_;
  int64_t unmatched_waits_ = 0;
  // Of the step at hand.
  RankStep current_;
  int rank_ = 0;
  std::vector<Interval> waits_;
};

/// A rank's steps with their events, by step number.
std::map<int64_t, StepEvents> steps_of(const Trace& trace, int rank) {
  std::map<int64_t, StepEvents> steps;
  for (const TraceEvent& event : trace.ranks[rank].events) {
    if (event.kind != TraceKind::kStep) continue;
    steps[event.step] = {
        .rank = rank, .span = {nanoseconds(event.begin_s), nanoseconds(event.end_s)}, .events = {}};
  }
  for (const TraceEvent& event : trace.ranks[rank].events) {
    const auto step = steps.find(event.step);
    if (event.kind != TraceKind::kStep && step != steps.end())
      step->second.events.push_back(&event);
  }
  for (auto& [number, step] : steps) {
    std::ranges::stable_sort(step.events, {}, [](const TraceEvent* event) {
      return std::pair(nanoseconds(event->begin_s), -nanoseconds(event->end_s));
    });
  }
  return steps;
}

void remove_once(std::string& text, const std::string& part) {
  if (const size_t at = text.find(part); at != std::string::npos) text.erase(at, part.size());
}

}  // namespace

const char* step_part_name(StepPart part) {
  constexpr std::array<const char*, kNumStepParts> kNames = {
      "compute", "copies", "issues", "gaps", "imbalance", "exposed", "sums", "other"};
  return kNames[static_cast<size_t>(part)];
}

int64_t StepParts::idle() const {
  return of(StepPart::kImbalance) + of(StepPart::kExposed) + of(StepPart::kSum) +
         of(StepPart::kOther);
}

int64_t StepParts::total() const { return std::accumulate(ns.begin(), ns.end(), int64_t{0}); }

StepParts& StepParts::operator+=(const StepParts& other) {
  for (size_t i = 0; i < ns.size(); ++i) ns[i] += other.ns[i];
  return *this;
}

RankStep& RankStep::operator+=(const RankStep& other) {
  parts += other.parts;
  hidden_ns += other.hidden_ns;
  bytes += other.bytes;
  received_bytes += other.received_bytes;
  waited_for_ns.resize(other.waited_for_ns.size());
  for (size_t i = 0; i < waited_for_ns.size(); ++i) waited_for_ns[i] += other.waited_for_ns[i];
  return *this;
}

std::string operation_name(const TraceEvent& event) {
  std::string name = event.name;
  remove_once(name, fmt::format(" layer {}", event.layer));
  remove_once(name, fmt::format(" of nano-batch {}", event.nano_batch));
  return name;
}

TraceAnalysis analyse(const Trace& trace, const std::string& name) {
  if (trace.ranks.empty()) throw Error(ErrorKind::kData, "{}: a trace of no rank", name);
  TraceAnalysis analysis;
  Analyser analyser(trace);
  for (int rank = 0; rank < static_cast<int>(trace.ranks.size()); ++rank) {
    std::vector<RankStep>& steps = analysis.ranks.emplace_back();
    RankStep& total = analysis.totals.emplace_back();
    for (const auto& [number, events] : steps_of(trace, rank)) {
      steps.push_back(analyser.add(events));
      steps.back().step = number;
      total += steps.back();
    }
    const std::vector<RankStep>& first = analysis.ranks[0];
    if (steps.empty() || !std::ranges::equal(steps, first, {}, &RankStep::step, &RankStep::step)) {
      throw Error(ErrorKind::kData, "{}: rank {} has {} steps, {}", name, rank, steps.size(),
                  rank == 0 ? "at least one is needed" : "not those of rank 0");
    }
  }
  analyser.finish(analysis);
  return analysis;
}

}  // namespace distca
