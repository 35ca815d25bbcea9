#include "distca/program/played_time.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <tuple>

#include "distca/base/error.h"

namespace distca {
namespace {

class PlayedStep {
 public:
  PlayedStep(const std::vector<Program>& programs,
             const std::function<double(int, const Op&)>& seconds, double message_s)
      : programs_(programs),
        seconds_(seconds),
        message_s_(message_s),
        next_(programs.size(), 0),
        ranks_(programs.size()) {}

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
  /// When all that this rank receives of a communication is there. Returns nothing if some of it is
  /// not sent yet.
  std::optional<double> landed(size_t rank, const Op& op) const {
    double last = 0;
    for (const PeerMessage& message : programs_[rank].receives(op).messages) {
      const auto sent = sent_.find({message.peer, static_cast<int>(rank), op.tag});
      if (sent == sent_.end()) return std::nullopt;
      last = std::max(last, sent->second + message_s_);
    }
    return last;
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
    for (const PeerMessage& message : program.sends(op).messages)
      sent_[{static_cast<int>(rank), message.peer, op.tag}] = begin;
    const double price = op.stream == Stream::kCompute ? seconds_(static_cast<int>(rank), op) : 0;
    ranks_[rank].end_s = begin + price;
    ranks_[rank].worked_s += price;
    ++next_[rank];
    return true;
  }

  const std::vector<Program>& programs_;
  const std::function<double(int, const Op&)>& seconds_;
  double message_s_;
  std::vector<size_t> next_;  // [rank] operation
  std::vector<PlayedTime> ranks_;
  std::map<std::tuple<int, int, uint32_t>, double> sent_;  // by (from, to, tag)
};

}  // namespace

std::vector<PlayedTime> played_times(const std::vector<Program>& programs,
                                     const std::function<double(int, const Op&)>& seconds,
                                     double message_s) {
  return PlayedStep(programs, seconds, message_s).run();
}

}  // namespace distca
