#pragma once
// The moves of scheduler `balanced`: shards go from servers above their bound to servers below it
// (best_first.h explains the words). One object belongs to one thread.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "distca/plan/balanced/best_first.h"
#include "distca/plan/shard.h"

namespace distca {

class Mover final : public BestFirst {
 public:
  /// Borrows both arguments. Every shard must have all keys that its rows see.
  Mover(const PlanRequest& request, Assignment& state);

  const std::vector<int>& by_room() const override { return by_room_; }
  /// The load of a shard too small to be worth a task of its own.
  int64_t small_shard_load() const { return small_shard_load_; }

  /// Makes the best moves first, until no server is above its bound or none below may take more.
  /// The score of a move is its price / load^(1 + larger_first / 8), and the lowest is best. So a
  /// higher `larger_first` favours larger moves.
  void balance(int larger_first = 0);
  /// Moves single blocks, each from the server above its bound with most load for its capacity to
  /// the one that then has least, until the bounds are met or no block helps. Of all blocks it
  /// takes the one that leaves the higher of the two lowest.
  /// With a profile, the price of a shard is not the sum of its parts' prices. So a move may raise
  /// the load that it was to lower, and moves could go in a circle. They also end when as many
  /// moves as there are servers have not lowered the highest load for its capacity. Where prices
  /// add up, they never end for this reason: each move lowers one of the highest.
  void shed_blocks();
  /// The rows of a shard that have about the donor's excess as load: the last ones, and the first
  /// ones.
  std::vector<Range> rows_of_excess(int donor, const Shard& shard) const;
  /// Gives rows of a shard to another server, whatever its bound.
  void give(int from, size_t index, const Range& q, int to);

  void begin_trial() { state_.begin_trial(); }
  void keep_trial() { state_.keep_trial(); }
  void undo_trial();
  /// The price of all bytes. Those that a server receives beyond a fair limit (the keys of the
  /// longest document) count twice.
  int64_t price() const;

 private:
  /// Receivers that are tried though they know nothing of a document.
  static constexpr size_t kStrangers = 3;
  /// After a move of a document, so many of its donors look for a new best move at once. Those of
  /// the others become stale.
  static constexpr size_t kSharing = 16;

  std::optional<Move> best_move(int donor) override;
  bool better(const Move& a, const Move& b) const override { return a.score < b.score; }
  int64_t least_room(int receiver, int donor) const override {
    return std::min(excess(donor), small_shard_load_);
  }
  void note_load(int server) override;
  void look_again(std::vector<Donor>& donors, const Move& made, int64_t document) override;

  /// Rows of the shard at hand, and what the donor saves when it gives them away.
  struct Offer {
    Shard part;
    int64_t saved = 0;  // price of bytes
    /// The cost for any server that computes nothing of the document, and is not near it.
    std::optional<MoveCost> of_stranger = {};
  };

  bool goes_before(const Move& a, const Move& b) const;
  void look_at(int donor, size_t index);
  Offer& offer_of(const Range& q);
  MoveCost cost_for(int receiver, Offer& offer) const;
  void consider(int receiver, std::optional<Move>& best);
  bool shed_one_block(int donor);  // false if none helps
  std::optional<Move> priced(int receiver, const Range& q);
  double score(double price, int64_t useful) const;
  double least_score(int donor, const Shard& shard) const;

  const ShardRows rows_;           // borrows the price from state_
  const int64_t fair_receive_;     // bytes
  const double least_row_price_;   // price of Q and O of a row that is not at home
  const double least_pair_price_;  // price of a pair whose row and keys travel, times the keys' end
  const int64_t small_shard_load_;
  int larger_first_ = 0;
  std::vector<int> by_room_;    // all servers, by noted_, most first, ties by id
  std::vector<int64_t> noted_;  // [server] its room when it was placed in by_room_
  std::vector<std::pair<double, size_t>> outlook_;  // least score, index of the shard

  // the shard at hand
  int donor_ = 0;
  size_t index_ = 0;
  std::vector<Offer> offers_;  // shared by all receivers
};

}  // namespace distca
