#include "distca/sim/player.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "distca/base/error.h"
#include "distca/sim/message_times.h"

namespace distca {
namespace {

/// Plays the thread of each rank as far as it gets, in turns, on the machine of each lane. What a
/// thread may do next never depends on times, so it is the same in all lanes.
template <size_t kLanes>
class Player {
 public:
  using Ps = Lanes<kLanes>;

  /// Lanes behind the last machine are played as that. The times of operations, and what ranks wait
  /// for, are those of the first; operations are kept if `keeps_ops`.
  Player(const StepLinks& links, std::span<const PlayedOn> machines, bool keeps_ops)
      : links_(links),
        prices_(prices_of(machines)),
        messages_(links, wires_of(machines)),
        threads_(links.programs().size()),
        communications_(links.num_communications()) {
    step_.ranks.resize(threads_.size());
    if (!keeps_ops) return;
    step_.ops.resize(threads_.size());
    for (size_t i = 0; i < threads_.size(); ++i) step_.ops[i].resize(program(i).ops.size());
  }

  /// The step of the first lane, and the lengths of as many as there are machines.
  TimedTogether run(size_t machines, Turns turns) {
    const size_t count = threads_.size();
    for (bool goes_on = true; goes_on;) {
      goes_on = false;
      for (size_t turn = 0; turn < count; ++turn) {
        while (play_next(turns == Turns::kFirstToLast ? turn : count - 1 - turn)) goes_on = true;
      }
    }
    Ps length{};
    for (size_t i = 0; i < count; ++i) {
      const auto next = threads_[i].next;
      DISTCA_CHECK(threads_[i].is_over, "rank {} waits for what nobody sends{}", links_.rank_of(i),
                   next < program(i).ops.size()
                       ? " before it plays " + describe(program(i).ops[next])
                       : " at its end");
      length = later(length, threads_[i].now_ps);
      step_.ranks[i].end_ps = threads_[i].now_ps[0];
    }
    step_.length_ps = length[0];
    return {.first = std::move(step_), .lengths_ps = {length.begin(), length.begin() + machines}};
  }

 private:
  struct Thread {
    Ps now_ps{};
    size_t next = 0;                // operation
    size_t received = 0, sent = 0;  // at its end, communications that it need not wait for any more
    bool is_over = false;
  };
  struct Communication {
    int32_t landing = -1;  // its time in landings_ps_; -1 if it takes none
    bool is_finished = false, is_sent = false;
  };

  static std::array<const OpPrices*, kLanes> prices_of(std::span<const PlayedOn> machines) {
    std::array<const OpPrices*, kLanes> prices;
    for (size_t i = 0; i < kLanes; ++i)
      prices[i] = machines[std::min(i, machines.size() - 1)].prices;
    return prices;
  }
  static std::vector<Wire> wires_of(std::span<const PlayedOn> machines) {
    std::vector<Wire> wires;
    for (size_t i = 0; i < kLanes; ++i)
      wires.push_back(machines[std::min(i, machines.size() - 1)].wire);
    return wires;
  }

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
    const int64_t now = thread.now_ps[0];
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

  /// Neighbouring lanes may share their prices, which are asked for once then.
  bool is_priced_as_before(size_t lane) const {
    return lane > 0 && prices_[lane] == prices_[lane - 1];
  }

  void compute(size_t i, size_t op) {
    const Op& played = program(i).ops[op];
    Ps& now = threads_[i].now_ps;
    int64_t price = 0;
    for (size_t lane = 0; lane < kLanes; ++lane) {
      if (!is_priced_as_before(lane)) price = prices_[lane]->compute_ps(links_.rank_of(i), played);
      if (lane == 0) step_.ranks[i].computed_ps += price;
      now[lane] += price;
    }
    if (TimedOp* const times = timed(i, op)) {
      times->end_ps = now[0];
      times->sent_ps = 0;
    }
  }

  void start(size_t i, int32_t number) {
    const StepLinks::Communication& one = links_.communication(number);
    const auto op = static_cast<size_t>(one.op);
    const Op& played = program(i).ops[op];
    const MessageList &sends = links_.list(one, /*is_sent=*/true),
                      &receives = links_.list(one, /*is_sent=*/false);
    Ps& now = threads_[i].now_ps;
    Ps core, landing;
    CommunicationPrice price;
    for (size_t lane = 0; lane < kLanes; ++lane) {
      if (!is_priced_as_before(lane))
        price = prices_[lane]->communication(links_.rank_of(i), played, sends, receives);
      if (lane == 0) {
        RankTime& time = step_.ranks[i];
        time.copied_ps += price.pack_ps;
        time.issued_ps += price.issue_ps;
        time.core_ps += price.core_ps;
      }
      now[lane] += price.pack_ps + price.issue_ps;
      core[lane] = price.core_ps;
      landing[lane] = price.land_ps;
    }
    if (landing != Ps{}) {
      communications_[static_cast<size_t>(number)].landing = static_cast<int32_t>(landings_.size());
      landings_.push_back(landing);
    }
    if (TimedOp* const times = timed(i, op)) times->begin_ps = now[0];
    messages_.start(number, now);
    for (size_t lane = 0; lane < kLanes; ++lane) now[lane] += core[lane];
  }

  /// Waits for a communication, unless that was waited for before. Returns false if a peer is not
  /// at it yet.
  bool wait(size_t i, int32_t number, bool for_sends) {
    Communication& one = communications_[static_cast<size_t>(number)];
    bool& is_over = for_sends ? one.is_sent : one.is_finished;
    if (is_over) return true;
    const auto* const over = for_sends ? messages_.sent(number) : messages_.received(number);
    if (over == nullptr) return false;
    is_over = true;
    Ps& now = threads_[i].now_ps;
    RankTime& time = step_.ranks[i];
    const int64_t waits = std::max<int64_t>(0, over->at_ps[0] - now[0]);
    const int64_t late = std::clamp<int64_t>(over->last_peer_ps - now[0], 0, waits);
    time.late_ps += late;
    time.exposed_ps += waits - late;
    now = later(now, over->at_ps);
    const auto op = static_cast<size_t>(links_.communication(number).op);
    if (TimedOp* const played = timed(i, op))
      (for_sends ? played->sent_ps : played->end_ps) = over->at_ps[0];
    if (for_sends || one.landing < 0) return true;
    const Ps& landing = landings_[static_cast<size_t>(one.landing)];
    time.copied_ps += landing[0];
    for (size_t lane = 0; lane < kLanes; ++lane) now[lane] += landing[lane];
    return true;
  }

  const StepLinks& links_;
  const std::array<const OpPrices*, kLanes> prices_;
  MessageTimes<kLanes> messages_;
  std::vector<Thread> threads_;                // [program]
  std::vector<Communication> communications_;  // [communication]
  std::vector<Ps> landings_;                   // putting in place what was received
  TimedStep step_;
};

}  // namespace

TimedStep timed_step(std::span<const Program> programs, const OpPrices& prices, const Wire& wire,
                     Turns turns) {
  const StepLinks links(programs, wire.ranks_per_node);
  const PlayedOn machine{.prices = &prices, .wire = wire};
  return Player<1>(links, {&machine, 1}, /*keeps_ops=*/true).run(1, turns).first;
}

TimedTogether timed_together(const StepLinks& links, std::span<const PlayedOn> machines,
                             bool with_first) {
  const size_t count = machines.size();
  DISTCA_CHECK(count >= 1 && count <= kMostMachinesTogether, "{} machines together", count);
  const auto play = [&]<size_t kLanes>(std::integral_constant<size_t, kLanes>) {
    return Player<kLanes>(links, machines, with_first).run(count, Turns::kFirstToLast);
  };
  if (count == 1) return play(std::integral_constant<size_t, 1>());
  if (count <= 3) return play(std::integral_constant<size_t, 3>());
  return play(std::integral_constant<size_t, kMostMachinesTogether>());
}

}  // namespace distca
