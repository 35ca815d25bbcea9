// All ranks together.

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <unordered_map>

#include "distca/program/validate/validate_checks.h"

namespace distca {
namespace {

/// The bytes that one exchange of a rank sends to and receives from one peer.
struct Issued {
  int32_t op = -1;
  uint32_t tag = 0;
  int64_t sent = 0;
  int64_t received = 0;
};

/// visit(rank, issued) for each rank with which a communication has messages.
template <typename Visit>
void for_each_peer(const Program& program, int32_t i, const Visit& visit) {
  const Op& op = program.ops[i];
  const std::vector<PeerMessage>&sends = program.sends(op).messages,
        &receives = program.receives(op).messages;
  auto send = sends.begin();
  auto receive = receives.begin();
  while (send != sends.end() || receive != receives.end()) {
    const bool is_sent =
        send != sends.end() && (receive == receives.end() || send->peer <= receive->peer);
    const int peer = is_sent ? send->peer : receive->peer;
    Issued issued{.op = i, .tag = op.tag};
    if (is_sent) issued.sent = (send++)->bytes;
    if (receive != receives.end() && receive->peer == peer) {
      issued.received = (receive++)->bytes;
    }
    visit(program.rank_of(op, peer), issued);
  }
}

class Matching {
 public:
  Matching(std::span<const Program> programs, std::vector<std::string>& wrong)
      : programs_(programs), wrong_(wrong) {}

  void check() {
    const auto num_ranks = static_cast<int>(programs_.size());
    // [rank], by peer: what the rank issues for it, in order, as a hash that is the same from both
    // sides.
    std::vector<std::unordered_map<int, uint64_t>> hashes(num_ranks);
    for (int rank = 0; rank < num_ranks; ++rank) {
      for (int32_t i = 0; i < static_cast<int32_t>(programs_[rank].ops.size()); ++i) {
        for_each_peer(programs_[rank], i, [&](int peer, const Issued& issued) {
          if (peer >= num_ranks || peer == rank) {
            report(wrong_, "rank {}: {} exchanges with rank {} of {}", rank,
                   numbered(programs_[rank], i), peer, num_ranks);
            return;
          }
          const bool up = rank < peer;
          uint64_t& hash = hashes[rank][peer];
          for (const uint64_t value :
               {uint64_t{issued.tag}, static_cast<uint64_t>(up ? issued.sent : issued.received),
                static_cast<uint64_t>(up ? issued.received : issued.sent)}) {
            hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
            hash ^= hash >> 29;
          }
        });
      }
    }
    for (int rank = 0; rank < num_ranks; ++rank) {
      std::map<int, uint64_t> of_peers(hashes[rank].begin(), hashes[rank].end());
      for (const auto& [peer, hash] : of_peers) {
        const auto other = hashes[peer].find(rank);
        // A pair that differs is seen from both sides, unless one side has nothing.
        if (other == hashes[peer].end() || (rank < peer && other->second != hash)) {
          explain(std::min(rank, peer), std::max(rank, peer));
        }
      }
    }
  }

 private:
  std::vector<Issued> issued(int rank, int peer) const {
    std::vector<Issued> result;
    for (int32_t i = 0; i < static_cast<int32_t>(programs_[rank].ops.size()); ++i) {
      for_each_peer(programs_[rank], i, [&](int other, const Issued& issued) {
        if (other == peer) result.push_back(issued);
      });
    }
    return result;
  }

  /// Where the two ranks differ.
  void explain(int low, int high) {
    const size_t before = wrong_.size();
    const std::vector<Issued> a = issued(low, high), b = issued(high, low);
    compare(low, a, high, b, /*bytes=*/true);
    compare(high, b, low, a, /*bytes=*/false);
    if (wrong_.size() > before) return;
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      if (a[i].tag == b[i].tag) continue;
      return report(wrong_, "ranks {} and {} start their exchanges in another order: {} and {}",
                    low, high, numbered(programs_[low], a[i].op),
                    numbered(programs_[high], b[i].op));
    }
  }

  void compare(int rank, const std::vector<Issued>& mine, int peer, const std::vector<Issued>& its,
               bool bytes) {
    std::unordered_map<uint32_t, Issued> by_tag;
    for (const Issued& issued : its) by_tag.emplace(issued.tag, issued);
    for (const Issued& issued : mine) {
      const auto found = by_tag.find(issued.tag);
      const std::string name = fmt::format("rank {}: {} with tag {}", rank,
                                           numbered(programs_[rank], issued.op), issued.tag);
      if (found == by_tag.end()) {
        report(wrong_, "{} sends {} bytes to rank {} and receives {}, which has no such tag", name,
               issued.sent, peer, issued.received);
        continue;
      }
      const Issued& other = found->second;
      if (!bytes || (issued.sent == other.received && issued.received == other.sent)) continue;
      report(wrong_, "{} sends {} bytes to rank {} and receives {}, which receives {} and sends {}",
             name, issued.sent, peer, issued.received, other.received, other.sent);
    }
  }

  std::span<const Program> programs_;
  std::vector<std::string>& wrong_;
};

/// Plays all ranks as strictly as any machine does: a rank's exchanges end in the order in which
/// they were started (NCCL), each when all its peers are at it. Whoever may end them in another
/// order waits less.
class Waiting {
 public:
  Waiting(std::span<const Program> programs, std::vector<std::string>& wrong)
      : programs_(programs), wrong_(wrong), ranks_(programs.size()) {
    for (size_t rank = 0; rank < programs.size(); ++rank) {
      Rank& state = ranks_[rank];
      const std::vector<Op>& ops = programs[rank].ops;
      state.position.assign(ops.size(), -1);
      for (size_t i = 0; i < ops.size(); ++i) {
        if (ops[i].stream != Stream::kComm) continue;
        state.position[i] = static_cast<int>(state.exchanges.size());
        if (!programs[rank].sends(ops[i]).empty() || !programs[rank].receives(ops[i]).empty()) {
          state.of_tag.emplace(ops[i].tag, state.position[i]);
        }
        state.exchanges.push_back(static_cast<int32_t>(i));
      }
    }
  }

  void check() {
    std::deque<int> ready;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) ready.push_back(static_cast<int>(rank));
    while (!ready.empty()) {
      const int rank = ready.front();
      ready.pop_front();
      if (!advance(rank)) continue;
      ready.insert(ready.end(), ranks_[rank].waiting.begin(), ranks_[rank].waiting.end());
      ranks_[rank].waiting.clear();
    }
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (is_stuck(static_cast<int>(rank))) return explain(static_cast<int>(rank));
    }
  }

 private:
  struct Rank {
    std::vector<int32_t> exchanges;            // operations, in order
    std::vector<int> position;                 // [op] index in `exchanges`, or -1
    std::unordered_map<uint32_t, int> of_tag;  // position in exchanges
    size_t next = 0;                           // operation to begin
    int started = 0, done = 0;                 // exchanges
    size_t met = 0;                            // messages of the first that is not done
    int awaited = -1;                          // rank that is not at it
    std::vector<int> waiting;                  // ranks that wait for this one
  };

  bool is_stuck(int rank) const {
    return ranks_[rank].done < static_cast<int>(ranks_[rank].exchanges.size());
  }

  /// Plays a rank as far as it goes. Returns true if it went on.
  bool advance(int rank) {
    Rank& state = ranks_[rank];
    const size_t next = state.next;
    const int done = state.done;
    do {
      begin_operations(rank);
    } while (end_exchange(rank));
    return state.next != next || state.done != done;
  }

  void begin_operations(int rank) {
    Rank& state = ranks_[rank];
    const auto is_done = [&state](int32_t op) { return state.position[op] < state.done; };
    for (; state.next < programs_[rank].ops.size(); ++state.next) {
      const Op& op = programs_[rank].ops[state.next];
      if (!std::ranges::all_of(op.wait_for, is_done) ||
          !std::ranges::all_of(op.wait_sends, is_done))
        return;
      if (op.stream == Stream::kComm) ++state.started;
    }
  }

  /// The first exchange under way, if all its peers are at it.
  bool end_exchange(int rank) {
    Rank& state = ranks_[rank];
    if (state.done == state.started) return false;
    const Op& op = programs_[rank].ops[state.exchanges[state.done]];
    const std::vector<PeerMessage>&sends = programs_[rank].sends(op).messages,
          &receives = programs_[rank].receives(op).messages;
    for (; state.met < sends.size() + receives.size(); ++state.met) {
      const int peer = programs_[rank].rank_of(op, state.met < sends.size()
                                                       ? sends[state.met].peer
                                                       : receives[state.met - sends.size()].peer);
      Rank& other = ranks_[peer];
      const int position = other.of_tag.at(op.tag);
      if (other.done >= position && other.started > position) continue;
      state.awaited = peer;
      other.waiting.push_back(rank);
      return false;
    }
    state.met = 0;
    ++state.done;
    return true;
  }

  void explain(int rank) {
    std::vector<bool> seen(ranks_.size());
    while (!seen[rank]) {  // into the circle
      seen[rank] = true;
      rank = ranks_[rank].awaited;
    }
    std::string line = "waiting in a circle:";
    const int first = rank;
    do {
      const Rank& state = ranks_[rank];
      line += fmt::format(" rank {} in {} for rank {},", rank,
                          numbered(programs_[rank], state.exchanges[state.done]), state.awaited);
      rank = state.awaited;
    } while (rank != first);
    line.pop_back();
    wrong_.push_back(line);
  }

  std::span<const Program> programs_;
  std::vector<std::string>& wrong_;
  std::vector<Rank> ranks_;
};

}  // namespace

void check_ranks(std::span<const Program> programs, std::vector<std::string>& wrong) {
  Matching(programs, wrong).check();
  check_order_in_servers(programs, wrong);
  if (wrong.empty()) Waiting(programs, wrong).check();
}

}  // namespace distca
