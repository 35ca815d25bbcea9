#include "distca/runtime/executor.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/program/op_events.h"
#include "distca/runtime/out_of_device_memory.h"

namespace distca {
namespace {

/// A program that is being played.
struct Playing {
  struct Exchange {
    bool finished = false;
    bool sent = false;
    double issued_s = 0;
  };
  struct TimedPart {
    double* seconds;  // in times
    TraceSpan span;   // on the steady clock; with an OpClock first its marks
  };

  const Program& program;
  OpPlayer& player;
  OpTimes& times;
  TraceRecorder* recorder;
  OpClock* clock;
  std::vector<TimedPart> unsettled_parts{};  // with marks for seconds
  std::vector<TraceEvent> unsettled_events{};
  std::vector<Exchange> exchanges = std::vector<Exchange>(program.ops.size());  // [operation]

  void run() {
    const auto num_ops = static_cast<int32_t>(program.ops.size());
    for (int32_t i = 0; i < num_ops; ++i) {
      const Op& op = program.ops[i];
      for (const int32_t dep : op.wait_for) {
        DISTCA_CHECK(dep >= 0 && dep < i, "{} needs operation {}", describe(op), dep);
        finish(dep);
      }
      for (const int32_t exchange : op.wait_sends) {
        DISTCA_CHECK(exchange >= 0 && exchange < i, "{} needs operation {}", describe(op),
                     exchange);
        wait_sent(exchange);
      }
      op.stream == Stream::kComm ? start(i) : play(op);
    }
    for (int32_t i = 0; i < num_ops; ++i) finish(i);
    for (int32_t i = 0; i < num_ops; ++i) wait_sent(i);
    if (clock) settle(clock->seconds());
  }

  void play(const Op& op) {
    const TraceSpan span = timed(op, OpPart::kPlay, [&] { player.play(op); });
    if (recorder) add(compute_event(program, op, span));
  }

  void start(int32_t index) {
    const Op& op = program.ops[index];
    const TraceSpan pack = timed(op, OpPart::kPack, [&] { player.pack(op); });
    const TraceSpan issue = timed(op, OpPart::kIssue, [&] { player.issue(op); });
    exchanges[index].issued_s = issue.begin_s;
    if (recorder) add_all(start_events(program, op, pack, issue));
  }

  void finish(int32_t index) {
    const Op& op = program.ops[index];
    Exchange& exchange = exchanges[index];
    if (op.stream != Stream::kComm || exchange.finished) return;
    exchange.finished = true;
    const TraceSpan wait = timed(op, OpPart::kWait, [&] { player.wait(op); });
    const TraceSpan land = timed(op, OpPart::kLand, [&] { player.land(op); });
    if (!recorder) return;
    add_all(receive_events(program, op, wait, {exchange.issued_s, wait.end_s}, land));
  }

  void wait_sent(int32_t index) {
    const Op& op = program.ops[index];
    Exchange& exchange = exchanges[index];
    if (op.stream != Stream::kComm || exchange.sent) return;
    exchange.sent = true;
    const TraceSpan wait = timed(op, OpPart::kWait, [&] { player.wait_sent(op); });
    if (recorder) add_all(send_events(program, op, wait, {exchange.issued_s, wait.end_s}));
  }

  template <typename Body>
  TraceSpan timed(const Op& op, OpPart part, const Body& body) {
    // Its own clock is read inside: where a group's quota is used up, that is where it stands
    // still.
    TraceSpan span{now(), 0};
    const double processor_begin_s = thread_processor_seconds();
    try {
      body();
    } catch (const c10::OutOfMemoryError& error) {
      throw OutOfDeviceMemory(fmt::format("{} ({})", describe(op), asked_for(error)));
    }
    const double processor_s = thread_processor_seconds() - processor_begin_s;
    span.end_s = now();
    const auto [kind, pass] = std::pair(static_cast<int>(op.kind), static_cast<int>(op.pass));
    times.processor_seconds[kind][pass][static_cast<int>(part)] += processor_s;
    double& seconds = times.seconds[kind][pass][static_cast<int>(part)];
    if (clock) {
      unsettled_parts.push_back({&seconds, span});
    } else {
      seconds += span.end_s - span.begin_s;
    }
    return span;
  }

  double now() { return clock ? static_cast<double>(clock->mark()) : steady_seconds(); }

  void add(TraceEvent event) {
    if (clock) {
      unsettled_events.push_back(std::move(event));
    } else {
      recorder->add(std::move(event));
    }
  }

  /// `at`: of each mark.
  void settle(const std::vector<double>& at) {
    const auto time = [&at](double mark) { return at.at(static_cast<size_t>(mark)); };
    for (const auto& [seconds, span] : unsettled_parts) {
      *seconds += time(span.end_s) - time(span.begin_s);
    }
    for (TraceEvent& event : unsettled_events) {
      event.begin_s = time(event.begin_s);
      event.end_s = time(event.end_s);
      recorder->add(std::move(event));
    }
  }

  void add_all(std::vector<TraceEvent> events) {
    for (TraceEvent& event : events) add(std::move(event));
  }
};

}  // namespace

double OpTimes::of(OpKind kind, Pass pass, OpPart part) const {
  return seconds[static_cast<int>(kind)][static_cast<int>(pass)][static_cast<int>(part)];
}
double OpTimes::of(OpKind kind, Pass pass) const {
  double sum = 0;
  for (int part = 0; part < kNumOpParts; ++part) sum += of(kind, pass, static_cast<OpPart>(part));
  return sum;
}
double OpTimes::of(OpKind kind) const {
  return of(kind, Pass::kForward) + of(kind, Pass::kBackward);
}
double OpTimes::processor_of(OpKind kind) const {
  double sum = 0;
  for (const Parts& parts : processor_seconds[static_cast<int>(kind)]) {
    for (const double part : parts) sum += part;
  }
  return sum;
}
double OpTimes::of(OpPart part) const {
  double sum = 0;
  for (int kind = 0; kind < kNumOpKinds; ++kind) {
    if (is_of_weights(static_cast<OpKind>(kind))) continue;
    for (const Parts& parts : seconds[kind]) sum += parts[static_cast<int>(part)];
  }
  return sum;
}

void play(const Program& program, OpPlayer& player, OpTimes* times, TraceRecorder* recorder,
          OpClock* clock) {
  DISTCA_CHECK(times != nullptr, "times are wanted");
  Playing{program, player, *times, recorder, clock}.run();
}

}  // namespace distca
