#pragma once
// The moves of scheduler `balanced`: shards from servers above their bound to those below. One
// object is not for several threads at once.

#include <cstdint>
#include <optional>
#include <vector>

#include "distca/plan/balanced/assignment.h"
#include "distca/plan/balanced/shard_rows.h"
#include "distca/plan/plan.h"

namespace distca {

/// Servers by room, most first, ties by id.
class ByRoom {
 public:
  explicit ByRoom(std::vector<int64_t> room);
  const std::vector<int>& order() const { return order_; }
  int64_t room(int server) const { return room_[server]; }
  void set(int server, int64_t room);
  /// The server with the least room that has at least this; -1: none.
  int tightest(int64_t room) const;

 private:
  bool before(int a, int b) const { return room_[a] != room_[b] ? room_[a] > room_[b] : a < b; }
  std::vector<int>::iterator place(int server);

  std::vector<int64_t> room_;
  std::vector<int> order_;
};

struct Move {
  int donor = 0;
  size_t index = 0;  // in pieces(donor)
  Range q;
  int receiver = 0;
  int64_t load = 0;   // that the receiver gets
  int64_t price = 0;  // of bytes: what the receiver fetches less what the donor no longer does
  double score = 0;   // price per load that the donor has too much
};

class Mover {
 public:
  /// Borrows both.
  Mover(const PlanRequest& request, const Layout& layout);
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  const Assignment& state() const { return state_; }
  int64_t room(int server) const { return by_room_.room(server); }
  int64_t excess(int server) const { return -room(server); }

  int64_t crumb() const { return crumb_; }  // load that is not worth a task of its own
  const std::vector<int>& by_room() const { return by_room_.order(); }  // most first
  /// Servers that hold some of a document, or have read some of it.
  const std::vector<int>& knowing(int64_t document) const { return know_[document]; }

  /// Best moves first, until no server is above its bound or none below may take more.
  /// larger_first: how much a large move counts for more than its price per load, 0: not at all.
  void balance(int larger_first = 0);
  /// Moves one block from the most loaded server to the one that is then least loaded, by capacity:
  /// the block that leaves the higher of the two lowest. False when the bound is met or no block
  /// helps.
  bool shed_one_block();
  /// Rows of a piece of about the load that the donor has too much: the last ones, the first ones.
  std::vector<Range> rows_of_excess(int donor, const Piece& piece) const;
  /// Gives a piece to another server, whatever its bound.
  void give(int from, size_t index, Range q, int to);

  void begin_trial() { state_.begin_trial(); }
  void keep_trial() { state_.keep_trial(); }
  void undo_trial();
  /// What bytes cost, those count twice that one server receives beyond a fair limit.
  int64_t price() const;

 private:
  struct Donor {
    int server;
    bool stale;  // its best move is out of date: as good as it can be
    std::optional<Move> best;
  };
  static constexpr size_t kStrangers = 3;  // receivers tried that know nothing of a document
  static constexpr size_t kKnowing = 16;   // receivers tried that know it
  static constexpr size_t kSharing = 16;   // donors of a document looked at anew after a move of it

  std::optional<Move> best_move(int donor);
  void gather_receivers(int donor, const Piece& piece);
  void consider(int receiver, int donor, size_t index, std::optional<Move>& best) const;
  std::optional<Move> priced(int receiver, int donor, size_t index, const Range& q) const;
  double score(double price, int64_t useful) const;
  double least_score(int donor, const Piece& piece) const;
  double ratio(int server, int64_t load) const;
  int lightest_with(int64_t more, int donor) const;
  void apply(const Move& move) { give(move.donor, move.index, move.q, move.receiver); }

  const Cluster& cluster_;
  const std::vector<int64_t>& capacity_;
  Assignment state_;
  const ShardRows rows_;           // borrows from state_
  const int64_t fair_receive_;     // bytes
  const int64_t least_row_price_;  // of the Q and O of a row that is not at home
  std::vector<int64_t> bound_;     // [server] load
  int64_t crumb_ = 0;
  int larger_first_ = 0;
  ByRoom by_room_;
  std::vector<std::vector<int>> know_;  // [document] servers that hold or once read some of it
  std::vector<int> receivers_;          // to try for the piece at hand
};

}  // namespace distca
