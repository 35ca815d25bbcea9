#include "distca/sim/step_events.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "distca/base/error.h"
#include "distca/program/op_events.h"
#include "distca/sim/message_times.h"

namespace distca {
namespace {

double seconds_of(int64_t picoseconds) { return 1e-12 * static_cast<double>(picoseconds); }

/// Goes through the step of a rank's thread again: what it did between the times that the player
/// has noted follows from the prices.
class Thread {
 public:
  Thread(const Program& program, int rank, const std::vector<TimedOp>& played,
         const OpPrices& prices)
      : program_(program),
        rank_(rank),
        played_(played),
        prices_(prices),
        communications_(program.ops.size()) {}

  void run() {
    const size_t count = program_.ops.size();
    for (size_t i = 0; i < count; ++i) {
      const Op& op = program_.ops[i];
      for (const int32_t awaited : op.wait_for) finish(static_cast<size_t>(awaited));
      for (const int32_t awaited : op.wait_sends) wait_sent(static_cast<size_t>(awaited));
      op.stream == Stream::kCompute ? compute(i) : start(i);
    }
    for (size_t i = 0; i < count; ++i) finish(i);
    for (size_t i = 0; i < count; ++i) wait_sent(i);
  }

  int64_t now_ps() const { return now_ps_; }
  std::vector<TraceEvent> take_events() { return std::move(events_); }

 private:
  struct Communication {
    int64_t issue_ps = -1;  // when its issue began; -1 where it has no messages
    bool is_finished = false, is_sent = false;
  };

  /// The next part of the thread's time.
  TraceSpan passes(int64_t length_ps) {
    const int64_t begin_ps = now_ps_;
    now_ps_ += length_ps;
    return {seconds_of(begin_ps), seconds_of(now_ps_)};
  }

  TraceSpan waits_until(int64_t at_ps) { return passes(std::max<int64_t>(0, at_ps - now_ps_)); }

  void add(std::vector<TraceEvent> events) {
    std::ranges::move(events, std::back_inserter(events_));
  }

  CommunicationPrice price(const Op& op) const {
    return prices_.communication(rank_, op, program_.sends(op), program_.receives(op));
  }

  void compute(size_t i) {
    const Op& op = program_.ops[i];
    expect_at(op, played_[i].begin_ps);
    events_.push_back(compute_event(program_, op, passes(played_[i].end_ps - played_[i].begin_ps)));
  }

  void start(size_t i) {
    const Op& op = program_.ops[i];
    if (program_.sends(op).empty() && program_.receives(op).empty()) return;
    const CommunicationPrice price = this->price(op);
    const TraceSpan pack = passes(price.pack_ps);
    communications_[i].issue_ps = now_ps_;
    const TraceSpan issue = passes(price.issue_ps);
    expect_at(op, played_[i].begin_ps);
    add(start_events(program_, op, pack, issue));
    passes(price.core_ps);
  }

  void finish(size_t i) {
    Communication& one = communications_[i];
    if (one.issue_ps < 0 || std::exchange(one.is_finished, true)) return;
    const Op& op = program_.ops[i];
    const int64_t begin_ps = now_ps_;
    const TraceSpan wait = waits_until(played_[i].end_ps);
    // With Wire::in_order, one that only sends may have waited for its turn.
    if (program_.receives(op).empty() && now_ps_ > begin_ps)
      events_.push_back(send_events(program_, op, wait, {}).front());
    const TraceSpan land = passes(price(op).land_ps);
    add(receive_events(program_, op, wait, flight(i, played_[i].end_ps), land));
  }

  void wait_sent(size_t i) {
    Communication& one = communications_[i];
    if (one.issue_ps < 0 || std::exchange(one.is_sent, true)) return;
    const TraceSpan wait = waits_until(played_[i].sent_ps);
    add(send_events(program_, program_.ops[i], wait, flight(i, played_[i].sent_ps)));
  }

  TraceSpan flight(size_t i, int64_t end_ps) const {
    return {seconds_of(communications_[i].issue_ps), seconds_of(end_ps)};
  }

  void expect_at(const Op& op, int64_t played_ps) const {
    DISTCA_CHECK(now_ps_ == played_ps, "rank {}: {} at {} ps, was played at {} ps", rank_,
                 describe(op), now_ps_, played_ps);
  }

  const Program& program_;
  const int rank_;
  const std::vector<TimedOp>& played_;
  const OpPrices& prices_;
  std::vector<Communication> communications_;  // [operation]
  std::vector<TraceEvent> events_;
  int64_t now_ps_ = 0;
};

}  // namespace

std::vector<TraceEvent> step_events(std::span<const Program> programs, size_t program,
                                    const TimedStep& step, const OpPrices& prices, int64_t number) {
  const int rank = ranks_of(programs)[program];
  Thread thread(programs[program], rank, step.ops[program], prices);
  thread.run();
  const int64_t end_ps = step.ranks[program].end_ps;
  DISTCA_CHECK(thread.now_ps() == end_ps, "rank {} ends at {} ps, was played to {} ps", rank,
               thread.now_ps(), end_ps);
  const double length_s = seconds_of(step.length_ps);
  std::vector<TraceEvent> events = {
      {.kind = TraceKind::kStep, .name = fmt::format("step {}", number), .end_s = length_s}};
  std::ranges::move(thread.take_events(), std::back_inserter(events));
  if (end_ps < step.length_ps) {
    events.push_back({.kind = TraceKind::kWait,
                      .name = kEndOfStep,
                      .begin_s = seconds_of(end_ps),
                      .end_s = length_s});
  }
  for (TraceEvent& event : events) event.step = number;
  // A message under way was added where it was waited for, behind later events.
  std::ranges::stable_sort(events, {}, &TraceEvent::begin_s);
  return events;
}

}  // namespace distca
