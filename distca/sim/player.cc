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
  /// The times of operations are kept if `keeps_ops`.
  Player(const StepLinks& links, const OpPrices& prices, const Wire& wire, bool keeps_ops)
      : links_(links),
        prices_(prices),
        messages_(links, wire),
        threads_(links.programs().size()),
        communications_(links.num_communications()) {
    step_.ranks.resize(threads_.size());
    if (!keeps_ops) return;
    step_.ops.resize(threads_.size());
    for (size_t i = 0; i < threads_.size(); ++i) step_.ops[i].resize(program(i).ops.size());
  }

  TimedStep run(Turns turns) {
    const size_t count = threads_.size();
    for (bool goes_on = true; goes_on;) {
      goes_on = false;
      for (size_t turn = 0; turn < count; ++turn) {
        while (play_next(turns == Turns::kFirstToLast ? turn : count - 1 - turn)) goes_on = true;
      }
    }
    for (size_t i = 0; i < count; ++i) {
      const auto next = threads_[i].next;
      DISTCA_CHECK(threads_[i].is_over, "rank {} waits for what nobody sends{}", links_.rank_of(i),
                   next < program(i).ops.size()
                       ? " before it plays " + describe(program(i).ops[next])
                       : " at its end");
      step_.length_ps = std::max(step_.length_ps, step_.ranks[i].end_ps);
    }
    return std::move(step_);
  }

 private:
  struct Thread {
    size_t next = 0;                // operation
    size_t received = 0, sent = 0;  // at its end, communications that it need not wait for any more
    bool is_over = false;
  };
  struct Communication {
    int64_t land_ps = 0;
    bool is_finished = false, is_sent = false;
  };

  const Program& program(size_t i) const { return links_.programs()[i]; }

  /// Plays the rank's next operation, unless it waits for a peer that is not at it yet.
  bool play_next(size_t i) {
    Thread& thread = threads_[i];
    if (thread.is_over) return false;
    const size_t next = thread.next;
    if (next == program(i).ops.size()) return thread.is_over = ends(i);
    for (const int32_t one : links_.waits_for(i, next)) {
      if (!wait(i, one, /*for_sends=*/false)) return false;
    }
    for (const int32_t one : links_.wait_sends(i, next)) {
      if (!wait(i, one, /*for_sends=*/true)) return false;
    }
    const int64_t now = step_.ranks[i].end_ps;
    if (TimedOp* const op = timed(i, next)) *op = {.begin_ps = now, .end_ps = now, .sent_ps = now};
    if (links_.computes(i, next)) {
      compute(i, next);
    } else if (const int32_t one = links_.at(i, next); one >= 0) {
      start(i, one);
    }
    ++thread.next;
    return true;
  }

  /// A rank ends once all that it receives is there, and all that it sends has left.
  bool ends(size_t i) {
    Thread& thread = threads_[i];
    const std::span<const int32_t> all = links_.communications(i);
    for (; thread.received < all.size(); ++thread.received) {
      if (!wait(i, all[thread.received], /*for_sends=*/false)) return false;
    }
    for (; thread.sent < all.size(); ++thread.sent) {
      if (!wait(i, all[thread.sent], /*for_sends=*/true)) return false;
    }
    return true;
  }

  TimedOp* timed(size_t i, size_t op) { return step_.ops.empty() ? nullptr : &step_.ops[i][op]; }

  void compute(size_t i, size_t op) {
    RankTime& time = step_.ranks[i];
    const int64_t price = prices_.compute_ps(links_.rank_of(i), program(i).ops[op]);
    time.computed_ps += price;
    time.end_ps += price;
    if (TimedOp* const played = timed(i, op)) {
      played->end_ps = time.end_ps;
      played->sent_ps = 0;
    }
  }

  void start(size_t i, int32_t number) {
    RankTime& time = step_.ranks[i];
    const StepLinks::Communication& one = links_.communication(number);
    const auto op = static_cast<size_t>(one.op);
    const CommunicationPrice price = prices_.communication(links_.rank_of(i), program(i).ops[op],
                                                           links_.list(one, /*is_sent=*/true),
                                                           links_.list(one, /*is_sent=*/false));
    communications_[static_cast<size_t>(number)].land_ps = price.land_ps;
    time.copied_ps += price.pack_ps;
    time.issued_ps += price.issue_ps;
    time.core_ps += price.core_ps;
    time.end_ps += price.pack_ps + price.issue_ps;
    if (TimedOp* const played = timed(i, op)) played->begin_ps = time.end_ps;
    messages_.start(number, time.end_ps);
    time.end_ps += price.core_ps;
  }

  /// Waits for a communication, unless that was waited for before. Returns false if a peer is not
  /// at it yet.
  bool wait(size_t i, int32_t number, bool for_sends) {
    Communication& one = communications_[static_cast<size_t>(number)];
    bool& is_over = for_sends ? one.is_sent : one.is_finished;
    if (is_over) return true;
    const std::optional<MessageTimes::Over> over =
        for_sends ? messages_.sent(number) : messages_.received(number);
    if (!over) return false;
    is_over = true;
    wait_until(i, *over);
    const auto op = static_cast<size_t>(links_.communication(number).op);
    if (TimedOp* const played = timed(i, op))
      (for_sends ? played->sent_ps : played->end_ps) = over->at_ps;
    if (for_sends) return true;
    step_.ranks[i].copied_ps += one.land_ps;
    step_.ranks[i].end_ps += one.land_ps;
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

  const StepLinks& links_;
  const OpPrices& prices_;
  MessageTimes messages_;
  std::vector<Thread> threads_;                // [program]
  std::vector<Communication> communications_;  // [communication]
  TimedStep step_;
};

}  // namespace

TimedStep timed_step(std::span<const Program> programs, const OpPrices& prices, const Wire& wire,
                     Turns turns) {
  const StepLinks links(programs, wire.ranks_per_node);
  return Player(links, prices, wire, /*keeps_ops=*/true).run(turns);
}

TimedStep timed_step(const StepLinks& links, const OpPrices& prices, const Wire& wire) {
  return Player(links, prices, wire, /*keeps_ops=*/true).run(Turns::kFirstToLast);
}

int64_t step_length_ps(const StepLinks& links, const OpPrices& prices, const Wire& wire) {
  return Player(links, prices, wire, /*keeps_ops=*/false).run(Turns::kFirstToLast).length_ps;
}

}  // namespace distca
