#include "distca/runtime/executor.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/runtime/out_of_device_memory.h"

namespace distca {
namespace {

std::vector<int> peers(const Program& program, const Op& op, const MessageList& list) {
  std::vector<int> ranks;
  ranks.reserve(list.messages.size());
  for (const PeerMessage& message : list.messages)
    ranks.push_back(program.rank_of(op, message.peer));
  return ranks;
}

/// A program that is being played.
class Playing {
 public:
  Playing(const Program& program, OpPlayer& player, OpTimes& times, TraceRecorder* recorder,
          OpClock* clock)
      : program_(program),
        player_(player),
        times_(times),
        recorder_(recorder),
        clock_(clock),
        exchanges_(program.ops.size()) {}

  void run() {
    const auto num_ops = static_cast<int32_t>(program_.ops.size());
    for (int32_t i = 0; i < num_ops; ++i) {
      const Op& op = program_.ops[i];
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
    if (clock_) settle(clock_->seconds());
  }

 private:
  struct Exchange {
    bool finished = false;
    bool sent = false;
    double issued_s = 0;
  };
  /// On the steady clock; with an OpClock first its marks.
  struct Span {
    double begin_s, end_s;
  };
  struct TimedPart {
    double* seconds;  // in times_
    Span span;
  };

  void play(const Op& op) {
    const Span span = timed(op, OpPart::kPlay, [&] { player_.play(op); });
    if (recorder_) record(op, TraceKind::kCompute, span);
  }

  void start(int32_t index) {
    const Op& op = program_.ops[index];
    const Span pack = timed(op, OpPart::kPack, [&] { player_.pack(op); });
    const Span issue = timed(op, OpPart::kIssue, [&] { player_.issue(op); });
    exchanges_[index].issued_s = issue.begin_s;
    if (!recorder_) return;
    const bool sends = !program_.sends(op).empty();
    if (sends) record(op, TraceKind::kCopy, pack);
    if (sends || !program_.receives(op).empty()) record(op, TraceKind::kLaunch, issue);
  }

  void finish(int32_t index) {
    const Op& op = program_.ops[index];
    Exchange& exchange = exchanges_[index];
    if (op.stream != Stream::kComm || exchange.finished) return;
    exchange.finished = true;
    const Span wait = timed(op, OpPart::kWait, [&] { player_.wait(op); });
    const Span land = timed(op, OpPart::kLand, [&] { player_.land(op); });
    if (!recorder_ || program_.receives(op).empty()) return;
    TraceEvent awaited = event(op, TraceKind::kWait, wait);
    awaited.to.clear();
    add(std::move(awaited));
    record(op, TraceKind::kFlight, {exchange.issued_s, wait.end_s});
    const bool lands = op.kind == OpKind::kCombine || op.kind == OpKind::kP2p;
    if (lands || op.kind == OpKind::kSumRows) record(op, TraceKind::kCopy, land);
  }

  void wait_sent(int32_t index) {
    const Op& op = program_.ops[index];
    Exchange& exchange = exchanges_[index];
    if (op.stream != Stream::kComm || exchange.sent) return;
    exchange.sent = true;
    const Span wait = timed(op, OpPart::kWait, [&] { player_.wait_sent(op); });
    if (!recorder_ || program_.sends(op).empty()) return;
    TraceEvent awaited = event(op, TraceKind::kWait, wait);
    awaited.from.clear();
    add(std::move(awaited));
    if (program_.receives(op).empty())
      record(op, TraceKind::kFlight, {exchange.issued_s, wait.end_s});
  }

  template <typename Body>
  Span timed(const Op& op, OpPart part, const Body& body) {
    // Its own clock is read inside: where a group's quota is used up, that is where it stands
    // still.
    Span span{now(), 0};
    const double processor_begin_s = thread_processor_seconds();
    try {
      body();
    } catch (const c10::OutOfMemoryError& error) {
      throw OutOfDeviceMemory(fmt::format("{} ({})", describe(op), asked_for(error)));
    }
    const double processor_s = thread_processor_seconds() - processor_begin_s;
    span.end_s = now();
    const auto [kind, pass] = std::pair(static_cast<int>(op.kind), static_cast<int>(op.pass));
    times_.processor_seconds[kind][pass][static_cast<int>(part)] += processor_s;
    double& seconds = times_.seconds[kind][pass][static_cast<int>(part)];
    if (clock_) {
      unsettled_parts_.push_back({&seconds, span});
    } else {
      seconds += span.end_s - span.begin_s;
    }
    return span;
  }

  double now() { return clock_ ? static_cast<double>(clock_->mark()) : steady_seconds(); }

  void add(TraceEvent event) {
    if (clock_) {
      unsettled_events_.push_back(std::move(event));
    } else {
      recorder_->add(std::move(event));
    }
  }

  /// `at`: of each mark.
  void settle(const std::vector<double>& at) {
    const auto time = [&at](double mark) { return at.at(static_cast<size_t>(mark)); };
    for (const auto& [seconds, span] : unsettled_parts_) {
      *seconds += time(span.end_s) - time(span.begin_s);
    }
    for (TraceEvent& event : unsettled_events_) {
      event.begin_s = time(event.begin_s);
      event.end_s = time(event.end_s);
      recorder_->add(std::move(event));
    }
  }

  void record(const Op& op, TraceKind kind, const Span& span) { add(event(op, kind, span)); }

  TraceEvent event(const Op& op, TraceKind kind, const Span& span) const {
    const MessageList &sends = program_.sends(op), &receives = program_.receives(op);
    return {.kind = kind,
            .name = describe(op),
            .begin_s = span.begin_s,
            .end_s = span.end_s,
            .layer = op.layer,
            .micro_batch = op.micro_batch,
            .nano_batch = op.nano_batch,
            .tick = op.tick,
            .tag = op.tag,
            .from = peers(program_, op, receives),
            .to = peers(program_, op, sends),
            .bytes = sends.bytes,
            .received_bytes = receives.bytes,
            .flops = op.flops};
  }

  const Program& program_;
  OpPlayer& player_;
  OpTimes& times_;
  TraceRecorder* recorder_;
  OpClock* clock_;
  std::vector<TimedPart> unsettled_parts_;  // with marks for seconds
  std::vector<TraceEvent> unsettled_events_;
  std::vector<Exchange> exchanges_;  // [operation]
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
  Playing(program, player, *times, recorder, clock).run();
}

}  // namespace distca
