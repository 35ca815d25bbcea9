#include "distca/plan/balanced/improve.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "distca/plan/balanced/caps.h"

namespace distca {
namespace {

constexpr int kOrders = 4;  // orders of moves: how much larger ones are favoured (Mover::balance)
constexpr int kTrials = 256;
constexpr int kReceiverTries = 2;  // tries of one receiver without a change
/// Receivers that took less load than so many small shards are left alone.
constexpr int kSmallShards = 4;

class Improve {
 public:
  Improve(Mover& mover, const Cluster& cluster)
      : mover_(mover), cluster_(cluster), tried_(mover.state().num_servers(), 0) {}

  bool round(int number) {
    const int worst = most_expensive();
    if (worst < 0 || tried_[worst] >= kReceiverTries) return false;
    ++tried_[worst];
    std::vector<int> targets{worst};
    const int partner = number % 2 == 1 ? partner_of(worst, number) : -1;
    if (partner >= 0) targets.push_back(partner);
    const int64_t price = mover_.price();
    const int64_t excess = total_excess();
    const bool better = try_it(
        [&] {
          for (const int server : targets) send_home(server);
          mover_.balance(number % kOrders);
        },
        [&] { return mover_.price() < price && total_excess() <= excess; });
    if (better) {
      for (const int server : state().touched()) tried_[server] = 0;
    }
    return true;
  }

  const Assignment& state() const { return mover_.state(); }

  /// Where caps leave a server above its bound: a server that knows its document takes some of its
  /// rows, however full, and gives away others.
  bool unstick() {
    int donor = 0;
    for (int server = 1; server < state().num_servers(); ++server) {
      if (mover_.excess(server) > mover_.excess(donor)) donor = server;
    }
    if (mover_.excess(donor) <= 0) return false;
    for (size_t index = state().shards(donor).size(); index-- > 0;) {
      const Shard shard = state().shards(donor)[index];
      const std::vector<int> knowing = mover_.knowing(shard.document);
      for (const Range& q : mover_.rows_of_excess(donor, shard)) {
        for (const int to : knowing) {
          if (trials_ == 0) return false;
          if (to != donor && passes_on(donor, index, q, to)) return true;
        }
      }
    }
    return false;
  }

 private:
  /// Keeps the change if it is better and no rank is further beyond a cap.
  template <typename Change, typename Better>
  bool try_it(const Change& change, const Better& is_better) {
    const int64_t over = overrun(state(), cluster_);
    mover_.begin_trial();
    change();
    const bool kept = is_better() && overrun(state(), cluster_) <= over;
    kept ? mover_.keep_trial() : mover_.undo_trial();
    return kept;
  }

  bool passes_on(int from, size_t index, const Range& q, int to) {
    const int64_t most = total_excess() - mover_.small_shard_load();
    --trials_;
    return try_it(
        [&] {
          mover_.give(from, index, q, to);
          mover_.balance();
        },
        [&] { return total_excess() <= most; });
  }

  int64_t total_excess() const {
    int64_t total = 0;
    for (int server = 0; server < state().num_servers(); ++server) {
      total += std::max<int64_t>(0, mover_.excess(server));
    }
    return total;
  }

  /// Bytes that a server receives per load that it took, or 0 if it took next to none.
  double rate(int server) const {
    int64_t load = 0;
    for (const Shard& shard : state().shards(server)) {
      if (state().home_of(shard) != server) load += shard.load;
    }
    return load < kSmallShards * mover_.small_shard_load()
               ? 0
               : static_cast<double>(state().receive_bytes(server)) / static_cast<double>(load);
  }

  /// Returns the receiver that has been tried least, and among those the most expensive one, or -1
  /// if there is none.
  int most_expensive() const {
    int worst = -1;
    double highest = 0;
    for (int server = 0; server < state().num_servers(); ++server) {
      const double here = rate(server);
      if (here == 0) continue;
      if (worst < 0 || tried_[server] < tried_[worst] ||
          (tried_[server] == tried_[worst] && here > highest)) {
        worst = server;
        highest = here;
      }
    }
    return worst;
  }

  /// Another server that took rows of the same documents; in turn with `number`.
  int partner_of(int receiver, int number) const {
    std::set<int> partners;
    for (const Shard& shard : state().shards(receiver)) {
      if (state().home_of(shard) == receiver) continue;
      for (const int server : mover_.knowing(shard.document)) {
        if (server != receiver && rate(server) > 0) partners.insert(server);
      }
    }
    if (partners.empty()) return -1;
    return *std::next(partners.begin(), (number * 7 + tried_[receiver]) % std::ssize(partners));
  }

  void send_home(int server) {
    for (size_t index = 0; index < state().shards(server).size();) {
      const Shard& shard = state().shards(server)[index];
      if (state().home_of(shard) == server) {
        ++index;
      } else {
        mover_.give(server, index, shard.q, state().home_of(shard));
      }
    }
  }

  Mover& mover_;
  const Cluster& cluster_;
  std::vector<int> tried_;  // [server] rounds since its last change
  int trials_ = kTrials;    // left to unstick()
};

}  // namespace

void unstick(Mover& mover, const Cluster& cluster) {
  Improve search(mover, cluster);
  while (search.unstick()) {
  }
}

void improve(Mover& mover, const Cluster& cluster, int rounds) {
  Improve search(mover, cluster);
  for (int round = 0; round < rounds && search.round(round); ++round) {
  }
}

}  // namespace distca
