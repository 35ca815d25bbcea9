#pragma once
// The moves of scheduler `balanced`: shards from servers above their bound to those below. One
// object is not for several threads at once.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "distca/plan/balanced/best_first.h"
#include "distca/plan/balanced/shard_rows.h"

namespace distca {

/// Servers by room, most first, ties by id.
class ByRoom {
 public:
  explicit ByRoom(std::vector<int64_t> room);
  const std::vector<int>& order() const { return order_; }
  void set(int server, int64_t room);

 private:
  bool before(int a, int b) const { return room_[a] != room_[b] ? room_[a] > room_[b] : a < b; }
  std::vector<int>::iterator place(int server);

  std::vector<int64_t> room_;
  std::vector<int> order_;
};

class Mover final : public BestFirst {
 public:
  /// Borrows both; every piece has all keys that its rows see.
  Mover(const PlanRequest& request, Assignment& state);

  const std::vector<int>& by_room() const override { return by_room_.order(); }
  int64_t crumb() const { return crumb_; }  // load that is not worth a task of its own

  /// Best moves first, until no server is above its bound or none below may take more.
  /// larger_first: how much a large move counts for more than its price per load, 0: not at all.
  void balance(int larger_first = 0);
  /// Moves one block from the most loaded server to the one that is then least loaded, by capacity:
  /// the block that leaves the higher of the two lowest. False when the bound is met or no block
  /// helps.
  bool shed_one_block();
  /// Rows of a piece of about the load that the donor has too much: the last ones, the first ones.
  std::vector<Range> rows_of_excess(int donor, const Piece& piece) const;
  /// Gives rows of a piece to another server, whatever its bound.
  void give(int from, size_t index, const Range& q, int to);

  void begin_trial() { state_.begin_trial(); }
  void keep_trial() { state_.keep_trial(); }
  void undo_trial();
  /// What bytes cost, those count twice that one server receives beyond a fair limit.
  int64_t price() const;

 private:
  static constexpr size_t kStrangers = 3;  // receivers tried that know nothing of a document
  static constexpr size_t kSharing = 16;   // donors of a document looked at anew after a move of it

  std::optional<Move> best_move(int donor) override;
  bool better(const Move& a, const Move& b) const override { return a.score < b.score; }
  int64_t least_room(int receiver, int donor) const override {
    return std::min(excess(donor), crumb_);
  }
  void note_load(int server) override { by_room_.set(server, room(server)); }
  void look_again(std::vector<Donor>& donors, const Move& made, int64_t document) override;

  void consider(int receiver, int donor, size_t index, std::optional<Move>& best) const;
  std::optional<Move> priced(int receiver, int donor, size_t index, const Range& q) const;
  double score(double price, int64_t useful) const;
  double least_score(int donor, const Piece& piece) const;

  const ShardRows rows_;           // borrows from state_
  const int64_t fair_receive_;     // bytes
  const int64_t least_row_price_;  // of the Q and O of a row that is not at home
  const int64_t crumb_;
  int larger_first_ = 0;
  ByRoom by_room_;
};

}  // namespace distca
