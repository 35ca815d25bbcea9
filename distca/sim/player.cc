#include "distca/sim/player.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "distca/base/error.h"
#include "distca/sim/message_times.h"

namespace distca {
namespace {

/// Plays the thread of each rank as far as it gets, in turns.
class Player {
 public:
  Player(std::span<const Program> programs, const OpPrices& prices, const Wire& wire)
      : programs_(programs), prices_(prices), messages_(programs, wire), threads_(programs.size()) {
    step_.ops.resize(programs.size());
    step_.ranks.resize(programs.size());
    for (size_t i = 0; i < programs.size(); ++i) {
      step_.ops[i].resize(programs[i].ops.size());
      threads_[i].is_finished.resize(programs[i].ops.size());
      threads_[i].is_sent.resize(programs[i].ops.size());
    }
  }

  TimedStep run(Turns turns) {
    const size_t count = programs_.size();
    for (bool goes_on = true; goes_on;) {
      goes_on = false;
      for (size_t turn = 0; turn < count; ++turn) {
        while (play_next(turns == Turns::kFirstToLast ? turn : count - 1 - turn)) goes_on = true;
      }
    }
    for (size_t i = 0; i < count; ++i) {
      const auto next = threads_[i].next;
      DISTCA_CHECK(
          threads_[i].is_over, "rank {} waits for what nobody sends{}", messages_.rank_of(i),
          next < programs_[i].ops.size() ? " before it plays " + describe(programs_[i].ops[next])
                                         : " at its end");
      step_.length_ps = std::max(step_.length_ps, step_.ranks[i].end_ps);
    }
    return std::move(step_);
  }

 private:
  struct Thread {
    size_t next = 0;                         // operation
    std::vector<bool> is_finished, is_sent;  // [operation]
    bool is_over = false;
  };

  /// Plays the rank's next operation, unless it waits for a peer that is not at it yet.
  bool play_next(size_t i) {
    Thread& thread = threads_[i];
    if (thread.is_over) return false;
    const Program& program = programs_[i];
    if (thread.next == program.ops.size()) {
      const std::vector<int32_t>& all = messages_.communications(i);
      return thread.is_over = wait(i, all, /*for_sends=*/false) && wait(i, all, /*for_sends=*/true);
    }
    const Op& op = program.ops[thread.next];
    if (!wait(i, op.wait_for, /*for_sends=*/false) || !wait(i, op.wait_sends, /*for_sends=*/true))
      return false;
    const int64_t now = step_.ranks[i].end_ps;
    step_.ops[i][thread.next] = {.begin_ps = now, .end_ps = now, .sent_ps = now};
    if (op.stream == Stream::kCompute) {
      compute(i, op);
    } else if (messages_.has_messages(i, static_cast<int32_t>(thread.next))) {
      start(i, op);
    }
    ++thread.next;
    return true;
  }

  void compute(size_t i, const Op& op) {
    RankTime& time = step_.ranks[i];
    const int64_t price = prices_.compute_ps(messages_.rank_of(i), op);
    time.computed_ps += price;
    time.end_ps += price;
    step_.ops[i][threads_[i].next].end_ps = time.end_ps;
    step_.ops[i][threads_[i].next].sent_ps = 0;
  }

  CommunicationPrice price(size_t i, const Op& op) const {
    return prices_.communication(messages_.rank_of(i), op, programs_[i].sends(op),
                                 programs_[i].receives(op));
  }

  void start(size_t i, const Op& op) {
    RankTime& time = step_.ranks[i];
    const CommunicationPrice price = this->price(i, op);
    time.copied_ps += price.pack_ps;
    time.issued_ps += price.issue_ps;
    time.core_ps += price.core_ps;
    time.end_ps += price.pack_ps + price.issue_ps;
    step_.ops[i][threads_[i].next].begin_ps = time.end_ps;
    messages_.start(i, static_cast<int32_t>(threads_[i].next), time.end_ps);
    time.end_ps += price.core_ps;
  }

  /// Waits for communications, all but those that were waited for. Returns false if a peer of one
  /// is not at it yet.
  bool wait(size_t i, const std::vector<int32_t>& ops, bool for_sends) {
    std::vector<bool>& is_over = for_sends ? threads_[i].is_sent : threads_[i].is_finished;
    for (const int32_t at : ops) {
      const auto op = static_cast<size_t>(at);
      if (is_over[op] || !messages_.has_messages(i, at)) continue;
      const std::optional<MessageTimes::Over> over =
          for_sends ? messages_.sent(i, at) : messages_.received(i, at);
      if (!over) return false;
      wait_until(i, *over);
      is_over[op] = true;
      TimedOp& played = step_.ops[i][op];
      (for_sends ? played.sent_ps : played.end_ps) = over->at_ps;
      if (for_sends) continue;
      const int64_t land = price(i, programs_[i].ops[op]).land_ps;
      step_.ranks[i].copied_ps += land;
      step_.ranks[i].end_ps += land;
    }
    return true;
  }

  void wait_until(size_t i, const MessageTimes::Over& over) {
    RankTime& time = step_.ranks[i];
    const int64_t waits = std::max<int64_t>(0, over.at_ps - time.end_ps);
    const int64_t late = std::clamp<int64_t>(over.last_peer_ps - time.end_ps, 0, waits);
    time.late_ps += late;
    time.exposed_ps += waits - late;
    time.end_ps += waits;
  }

  const std::span<const Program> programs_;
  const OpPrices& prices_;
  MessageTimes messages_;
  std::vector<Thread> threads_;  // [program]
  TimedStep step_;
};

}  // namespace

TimedStep timed_step(std::span<const Program> programs, const OpPrices& prices, const Wire& wire,
                     Turns turns) {
  return Player(programs, prices, wire).run(turns);
}

}  // namespace distca
