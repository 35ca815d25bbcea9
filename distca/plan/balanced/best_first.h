#pragma once
// The common part of both greedy searches of `balanced`. Donors are servers above their bound; they
// give parts of their shards to receivers, which are servers below theirs. Of all donors' moves,
// the best one is made first. A search decides which parts can be given: rows with all their keys
// (moves.h), or rectangles of queries x keys (split_kv_steps.h).
//
// The bound of a server is (1 + tolerance) times its share of the load (plan/bounds.h). Its room is
// the load that it may still take, its excess the load that it has above the bound. One object
// belongs to one thread.

#include <cstdint>
#include <optional>
#include <vector>

#include "distca/plan/balanced/assignment.h"
#include "distca/plan/plan.h"

namespace distca {

/// A part of a shard goes from a donor to a receiver.
struct Move {
  int donor = 0;
  size_t index = 0;  // index of the shard in shards(donor)
  Shard part;        // part of this shard, for the receiver
  int receiver = 0;
  int64_t useful = 0;  // load that the donor loses, at most its excess
  int64_t price = 0;   // price of bytes: what the receiver fetches, less what the donor saves
  double score = 0;    // for a search whose better() compares one number
};

class BestFirst {
 public:
  BestFirst(const BestFirst&) = delete;
  BestFirst& operator=(const BestFirst&) = delete;

  const Assignment& state() const { return state_; }
  int64_t room(int server) const { return bound_[server] - state_.load(server); }
  int64_t excess(int server) const { return -room(server); }
  /// The servers with room, most room first. Others may follow behind them.
  virtual const std::vector<int>& by_room() const = 0;
  /// The servers that hold some of a document, or have read some of it.
  const std::vector<int>& knowing(int64_t document) const { return know_[document]; }

 protected:
  struct Donor {
    int server;
    bool stale;  // its best move is out of date; a new one is no better
    std::optional<Move> best;
  };

  /// Borrows both arguments. Bounds follow from the load that there is now.
  BestFirst(const PlanRequest& request, Assignment& state);
  ~BestFirst() = default;

  virtual std::optional<Move> best_move(int donor) = 0;
  virtual bool better(const Move& a, const Move& b) const = 0;
  /// A receiver with less room than this is not worth a task of the donor.
  virtual int64_t least_room(int receiver, int donor) const = 0;
  /// Puts the server in its new place in by_room().
  virtual void note_load(int server) = 0;
  /// After a move of some of `document`: finds new best moves, or marks old ones as stale.
  virtual void look_again(std::vector<Donor>& donors, const Move& made, int64_t document) = 0;

  /// Makes the best move of any donor, until no server is above its bound or no donor has a move. A
  /// move gets no better while rooms shrink. So a stale move is looked at again only when it would
  /// be the next one.
  void give_best_first();
  /// Gives `part` of shards(from)[index] to another server, whatever its bound.
  void reassign(int from, size_t index, const Shard& part, int to);
  void apply(const Move& move) { reassign(move.donor, move.index, move.part, move.receiver); }
  bool may_take(int receiver, int donor) const {
    return room(receiver) > 0 && room(receiver) >= least_room(receiver, donor);
  }

  /// The servers that may take some of a shard: servers that know its document, the `strangers`
  /// servers with most room, and those with the least room that can still take the donor's whole
  /// excess or the whole shard. The reference is valid until the next call.
  const std::vector<int>& likely_receivers(int donor, const Shard& shard, size_t strangers);
  /// Load for each unit of capacity. A server of capacity 0 should end with no load, so its load
  /// outweighs all.
  double ratio(int server, int64_t load) const;
  double ratio(int server) const { return ratio(server, state_.load(server)); }
  /// The server above its bound that has the most load for its capacity, or -1 if none is above.
  int fullest() const;
  /// The server other than the donor that would have the least load for its capacity with `more`
  /// load, or -1 if there is none.
  int lightest_with(int64_t more, int donor) const;

  const PlanRequest& request_;
  Assignment& state_;
  const std::vector<int64_t> bound_;  // [server] load

 private:
  static constexpr size_t kKnowing = 16;  // receivers that are tried because they know a document

  void note_knowing(int64_t document, int server);

  std::vector<std::vector<int>> know_;  // [document] servers that hold or once read some of it
  std::vector<int> receivers_;          // result of likely_receivers()
  std::vector<int64_t> listed_;         // [server] the last list that it was considered for
  int64_t list_ = 0;                    // number of the list in receivers_
};

}  // namespace distca
