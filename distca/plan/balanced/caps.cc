#include "distca/plan/balanced/caps.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>

namespace distca {
namespace {

constexpr int kLikely = 8;  // servers with most room that are tried as receivers

int64_t beyond(int64_t bytes, int64_t cap) {
  return cap > 0 ? std::max<int64_t>(0, bytes - cap) : 0;
}

struct Overrun {
  int64_t send = 0;
  int64_t kept = 0;  // received bytes and memory
  int64_t total() const { return send + kept; }
};

Overrun overrun_of(const Assignment& state, const Cluster& cluster, int rank) {
  return {.send = beyond(state.send_bytes(rank), cluster.max_send_bytes),
          .kept = beyond(state.receive_bytes(rank), cluster.max_receive_bytes) +
                  beyond(state.memory_bytes(rank), cluster.max_memory_bytes)};
}

class Repair {
 public:
  Repair(Mover& mover, const Cluster& cluster) : mover_(mover), cluster_(cluster) {}

  /// Returns false if nothing is over, or no move helps.
  bool step() {
    total_ = overrun(state(), cluster_);
    if (total_ == 0) return false;
    std::vector<std::pair<int64_t, int>> ranks;  // worst first
    for (int rank = 0; rank < state().num_servers(); ++rank) {
      const int64_t over = overrun_of(state(), cluster_, rank).total();
      if (over > 0) ranks.emplace_back(-over, rank);
    }
    std::sort(ranks.begin(), ranks.end());
    for (const auto& [over, rank] : ranks) {
      best_.reset();
      relieve(rank);
      if (!best_) continue;
      mover_.give(best_->from, best_->index, best_->q, best_->to);
      return true;
    }
    return false;
  }

 private:
  struct Trial {
    int from;
    size_t index;
    Range q;
    int to;
    std::array<int64_t, 3> badness;  // overrun, load above the bound, price
  };

  const Assignment& state() const { return mover_.state(); }

  void relieve(int rank) {
    const Overrun over = overrun_of(state(), cluster_, rank);
    for (int server = 0; server < state().num_servers(); ++server) {
      const bool reads_elsewhere = server == rank && over.kept > 0;
      for (size_t index = 0; index < state().shards(server).size(); ++index) {
        const int64_t document = state().shards(server)[index].document;
        if (reads_elsewhere ||
            (server != rank && over.send > 0 && state().homes().holds(rank, document))) {
          try_shard(server, index);
        }
      }
    }
  }

  void try_shard(int from, size_t index) {
    const Shard shard = state().shards(from)[index];
    const auto& knowing = mover_.knowing(shard.document);
    std::set<int> receivers(knowing.begin(), knowing.end());
    const auto& by_room = mover_.by_room();
    receivers.insert(by_room.begin(),
                     by_room.begin() + std::min<std::ptrdiff_t>(kLikely, std::ssize(by_room)));
    const int64_t middle = round_down((shard.q.begin + shard.q.end) / 2, kBlockTokens);
    for (const int to : receivers) {
      if (to == from) continue;
      try_move({from, index, shard.q, to, {}});
      if (middle <= shard.q.begin) continue;
      try_move({from, index, {shard.q.begin, middle}, to, {}});
      try_move({from, index, {middle, shard.q.end}, to, {}});
    }
  }

  void try_move(Trial trial) {
    mover_.begin_trial();
    mover_.give(trial.from, trial.index, trial.q, trial.to);
    trial.badness = {overrun(state(), cluster_), std::max<int64_t>(0, mover_.excess(trial.to)),
                     state().price()};
    mover_.undo_trial();
    if (trial.badness[0] < total_ && (!best_ || trial.badness < best_->badness)) best_ = trial;
  }

  Mover& mover_;
  const Cluster& cluster_;
  int64_t total_ = 0;
  std::optional<Trial> best_;
};

}  // namespace

bool has_caps(const Cluster& cluster) {
  return cluster.max_send_bytes > 0 || cluster.max_receive_bytes > 0 ||
         cluster.max_memory_bytes > 0;
}

int64_t overrun(const Assignment& state, const Cluster& cluster) {
  if (!has_caps(cluster)) return 0;
  int64_t total = 0;
  for (int rank = 0; rank < state.num_servers(); ++rank) {
    total += overrun_of(state, cluster, rank).total();
  }
  return total;
}

void respect_caps(Mover& mover, const Cluster& cluster) {
  Repair repair(mover, cluster);
  for (int steps = 16 + 8 * mover.state().num_servers(); steps > 0 && repair.step(); --steps) {
  }
}

}  // namespace distca
