#include "distca/program/played_time.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>

#include "distca/base/error.h"

namespace distca {
namespace {

class PlayedStep {
 public:
  PlayedStep(const std::vector<Program>& programs, const OpPrice& seconds, const OpPrice& message_s,
             Channels channels)
      : programs_(programs),
        seconds_(seconds),
        message_s_(message_s),
        channels_(channels),
        next_(programs.size(), 0),
        ranks_(programs.size()),
        communications_(programs.size()) {}

  std::vector<PlayedTime> run() {
    for (bool goes_on = true; goes_on;) {
      goes_on = false;
      for (size_t rank = 0; rank < programs_.size(); ++rank) {
        while (next_[rank] < programs_[rank].ops.size() && step(rank)) goes_on = true;
      }
    }
    for (size_t rank = 0; rank < programs_.size(); ++rank)
      DISTCA_CHECK_EQ(next_[rank], programs_[rank].ops.size());
    for (size_t rank = 0; rank < programs_.size(); ++rank) {
      for (const Op& op : programs_[rank].ops)
        ranks_[rank].end_s = std::max(ranks_[rank].end_s, *landed(rank, op));
    }
    return ranks_;
  }

 private:
  /// The communications that a rank has started, in order.
  struct Communications {
    struct Started {
      const Op* op;
      double at_s;
      std::optional<double> ended_s = std::nullopt;  // where there is one channel
      bool is_asked = false;                         // true while ended() looks for what it follows
    };
    std::vector<Started> started;
    std::unordered_map<uint32_t, size_t> of_tag;
  };

  /// When all that this rank receives of a communication is there. Returns nothing if some of it is
  /// not sent yet.
  std::optional<double> landed(size_t rank, const Op& op) {
    const std::vector<PeerMessage>& receives = programs_[rank].receives(op).messages;
    if (channels_ == Channels::kOne && (!receives.empty() || !programs_[rank].sends(op).empty()))
      return ended(rank, communications_[rank].of_tag.at(op.tag));
    double last = 0;
    for (const PeerMessage& message : receives) {
      const auto there =
          there_.find({programs_[rank].rank_of(op, message.peer), static_cast<int>(rank), op.tag});
      if (there == there_.end()) return std::nullopt;
      last = std::max(last, there->second);
    }
    return last;
  }

  /// When a rank's communication, its number in order, is over; nothing if that is not known yet.
  std::optional<double> ended(size_t rank, size_t number) {
    Communications::Started& one = communications_[rank].started[number];
    if (one.ended_s) return one.ended_s;
    DISTCA_CHECK(!one.is_asked, "rank {}: communications wait for each other in a circle at {}",
                 rank, describe(*one.op));
    one.is_asked = true;
    one.ended_s = end_in_order(rank, number, one);
    one.is_asked = false;
    return one.ended_s;
  }

  std::optional<double> end_in_order(size_t rank, size_t number,
                                     const Communications::Started& one) {
    double begin = one.at_s;
    const auto follows = [&](size_t other, size_t place) {
      if (place == 0) return true;
      const std::optional<double> before = ended(other, place - 1);
      if (before) begin = std::max(begin, *before);
      return before.has_value();
    };
    if (!follows(rank, number)) return std::nullopt;
    const Op& op = *one.op;
    for (const MessageList* list : {&programs_[rank].sends(op), &programs_[rank].receives(op)}) {
      for (const PeerMessage& message : list->messages) {
        const auto peer = static_cast<size_t>(programs_[rank].rank_of(op, message.peer));
        const Communications& its = communications_[peer];
        const auto found = its.of_tag.find(op.tag);
        if (found == its.of_tag.end() || !follows(peer, found->second)) return std::nullopt;
        begin = std::max(begin, its.started[found->second].at_s);
      }
    }
    return begin + message_s_(static_cast<int>(rank), op);
  }

  /// Plays the rank's next operation, unless it waits for what has not been sent.
  bool step(size_t rank) {
    const Program& program = programs_[rank];
    const Op& op = program.ops[next_[rank]];
    double begin = ranks_[rank].end_s;
    for (const int32_t other : op.wait_for) {
      const std::optional<double> there = landed(rank, program.ops[static_cast<size_t>(other)]);
      if (!there) return false;
      begin = std::max(begin, *there);
    }
    if (op.stream == Stream::kComm) start(rank, op, begin);
    const double price = op.stream == Stream::kCompute ? seconds_(static_cast<int>(rank), op) : 0;
    ranks_[rank].end_s = begin + price;
    ranks_[rank].worked_s += price;
    ++next_[rank];
    return true;
  }

  void start(size_t rank, const Op& op, double at_s) {
    const Program& program = programs_[rank];
    const std::vector<PeerMessage>& sends = program.sends(op).messages;
    if (sends.empty() && program.receives(op).empty()) return;
    if (channels_ == Channels::kOne) {
      Communications& own = communications_[rank];
      own.of_tag.emplace(op.tag, own.started.size());
      own.started.push_back({&op, at_s});
      return;
    }
    const double there_s = at_s + message_s_(static_cast<int>(rank), op);
    for (const PeerMessage& message : sends)
      there_[{static_cast<int>(rank), program.rank_of(op, message.peer), op.tag}] = there_s;
  }

  const std::vector<Program>& programs_;
  const OpPrice& seconds_;
  const OpPrice& message_s_;
  const Channels channels_;
  std::vector<size_t> next_;  // [rank] operation
  std::vector<PlayedTime> ranks_;
  std::map<std::tuple<int, int, uint32_t>, double> there_;  // by (from, to, tag)
  std::vector<Communications> communications_;              // [rank] where there is one channel
};

}  // namespace

std::vector<PlayedTime> played_times(const std::vector<Program>& programs, const OpPrice& seconds,
                                     const OpPrice& message_s, Channels channels) {
  return PlayedStep(programs, seconds, message_s, channels).run();
}

std::vector<PlayedTime> played_times(const std::vector<Program>& programs, const OpPrice& seconds,
                                     double message_s) {
  return played_times(programs, seconds, [message_s](int, const Op&) { return message_s; });
}

}  // namespace distca
