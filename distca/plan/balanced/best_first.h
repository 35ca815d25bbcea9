#pragma once
// What both greedy searches of `balanced` share: servers above their bound give parts of their
// pieces to servers below theirs, the best move of any of them first. Which parts there are to give
// is the search's own: rows with all their keys (moves.h), or rectangles of queries x keys
// (split_kv_give.h). One object is not for several threads at once.

#include <cstdint>
#include <optional>
#include <vector>

#include "distca/plan/balanced/assignment.h"
#include "distca/plan/plan.h"

namespace distca {

struct Move {
  int donor = 0;
  size_t index = 0;  // in pieces(donor)
  Piece part;        // of that piece, for the receiver
  int receiver = 0;
  int64_t useful = 0;  // load that the donor loses, as far as it has too much
  int64_t price = 0;   // of bytes: what the receiver fetches less what the donor no longer does
  double score = 0;    // of a search whose better() goes by one number
};

class BestFirst {
 public:
  BestFirst(const BestFirst&) = delete;
  BestFirst& operator=(const BestFirst&) = delete;

  const Assignment& state() const { return state_; }
  int64_t room(int server) const { return bound_[server] - state_.load(server); }
  int64_t excess(int server) const { return -room(server); }
  /// Servers with room, those with most first; maybe others behind them.
  virtual const std::vector<int>& by_room() const = 0;
  /// Servers that hold some of a document, or have read some of it.
  const std::vector<int>& knowing(int64_t document) const { return know_[document]; }

 protected:
  struct Donor {
    int server;
    bool stale;  // its best move is out of date: as good as it can be
    std::optional<Move> best;
  };

  /// Borrows both. Bounds are of the load that there is now.
  BestFirst(const PlanRequest& request, Assignment& state);
  ~BestFirst() = default;

  virtual std::optional<Move> best_move(int donor) = 0;
  virtual bool better(const Move& a, const Move& b) const = 0;
  /// Room below which the server is not worth a task of the donor's.
  virtual int64_t least_room(int receiver, int donor) const = 0;
  /// Puts the server where it now belongs in by_room().
  virtual void note_load(int server) = 0;
  /// After a move of some of `document`: finds new best moves or marks old ones as stale.
  virtual void look_again(std::vector<Donor>& donors, const Move& made, int64_t document) = 0;

  /// The best move of any donor, until no server is above its bound or none has a move. Lazily: a
  /// move gets no better while rooms shrink, so a stale one is looked at again only when it would
  /// be next.
  void give_best_first();
  /// `part` of pieces(from)[index] to another server, whatever its bound.
  void hand_over(int from, size_t index, const Piece& part, int to);
  void apply(const Move& move) { hand_over(move.donor, move.index, move.part, move.receiver); }
  bool may_take(int receiver, int donor) const {
    return room(receiver) > 0 && room(receiver) >= least_room(receiver, donor);
  }

  /// Those that may take some of a piece: that know its document, those with most room, of which so
  /// many may be strangers to it, and the tightest ones that can take all. Until the next call.
  const std::vector<int>& likely_receivers(int donor, const Piece& piece, size_t strangers);
  /// Load per capacity; a server of capacity 0 should end with none, so its load outweighs all.
  double ratio(int server, int64_t load) const;
  double ratio(int server) const { return ratio(server, state_.load(server)); }
  /// The server above its bound with the most load for its capacity; -1: none is above.
  int fullest() const;
  /// The other server that would have the least load for its capacity; -1: there is none.
  int lightest_with(int64_t more, int donor) const;

  const Cluster& cluster_;
  Assignment& state_;
  const std::vector<int64_t> bound_;  // [server] load

 private:
  static constexpr size_t kKnowing = 16;  // receivers tried that know a document

  void note_knowing(int64_t document, int server);

  std::vector<std::vector<int>> know_;  // [document] servers that hold or once read some of it
  std::vector<int> receivers_;          // likely_receivers()
};

}  // namespace distca
