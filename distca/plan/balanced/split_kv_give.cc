#include "distca/plan/balanced/split_kv_steps.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "distca/plan/balanced/caps.h"
#include "distca/plan/cuts.h"

namespace distca {
namespace {

/// A lower price per useful load?
bool lower(int64_t price, int64_t useful, const Move& than) {
  return static_cast<double>(price) * static_cast<double>(than.useful) <
         static_cast<double>(than.price) * static_cast<double>(useful);
}

class Giving final : public BestFirst {
 public:
  Giving(Assignment& state, const PlanRequest& request)
      : BestFirst(request, state),
        price_(state.task_price()),
        row_per_key_(request.shape.row_per_key()),
        key_price_(static_cast<double>(request.shape.kv_token_bytes()) *
                   static_cast<double>(std::min(byte_price(request.cluster.inside),
                                                byte_price(request.cluster.between)))) {
    for (int server = 0; server < state.num_servers(); ++server) note_load(server);
  }

  /// The move with the lowest price per useful load first, until no server is above its bound or
  /// none below can take more.
  void give() { give_best_first(); }

  /// Moves what it can from the server with the highest ratio to the one with the lowest, so that
  /// the higher of the two falls. False when no server is above its bound or nothing helps.
  bool shed() {
    const int donor = fullest();
    if (donor < 0) return false;
    const int receiver = lightest_with(0, donor);
    if (receiver < 0) return false;
    // Less than this, and the receiver stays below where the donor was.
    const double most =
        (ratio(donor) - ratio(receiver)) * static_cast<double>(request_.cluster.capacity[receiver]);
    if (most < 2) return false;
    std::optional<Move> best;
    for (size_t index = 0; index < state_.shards(donor).size(); ++index) {
      look_at(donor, index);
      look_at(receiver, static_cast<int64_t>(std::min(most, 1e18)) - 1);
      consider(best);
    }
    if (best) apply(*best);
    return best.has_value();
  }

 private:
  static constexpr int64_t kSmallShards = 128;  // so many small shards make a server's bound
  static constexpr size_t kForeign = 2;         // receivers tried that know nothing of a document

  std::optional<Move> best_move(int donor) override {
    const size_t count = state_.shards(donor).size();
    outlook_.clear();
    for (size_t index = 0; index < count; ++index) {
      look_at(donor, index);
      outlook_.emplace_back(least_price_per_load(), index);
    }
    std::sort(outlook_.begin(), outlook_.end());
    std::optional<Move> best;
    for (const auto& [least, index] : outlook_) {
      if (best && least * static_cast<double>(best->useful) > static_cast<double>(best->price))
        break;
      look_at(donor, index);
      for (const int receiver : likely_receivers(donor_, shard_, kForeign)) {
        look_at(receiver, room(receiver));
        consider(best);
      }
    }
    if (best || !has_caps(request_.cluster)) return best;
    for (size_t index = 0; index < count; ++index) {
      look_at(donor, index);
      for (const int receiver : order_) {  // caps may forbid the likely ones
        look_at(receiver, room(receiver));
        consider(best);
      }
    }
    return best;
  }

  bool better(const Move& a, const Move& b) const override { return lower(a.price, a.useful, b); }
  /// Not the room of a small shard: that is for excess that finds no other.
  int64_t least_room(int receiver, int donor) const override {
    return std::min(excess(donor), bound_[receiver] / kSmallShards);
  }
  const std::vector<int>& by_room() const override { return order_; }

  /// While the first of a move's two servers is placed, the second still lies where it belonged
  /// before, so the first may get a wrong place relative to it. Plans are made with that order.
  void note_load(int server) override {
    std::erase(order_, server);
    const int64_t left = room(server);
    if (left <= 0) return;
    const auto at = std::partition_point(order_.begin(), order_.end(), [&](int other) {
      return room(other) != left ? room(other) > left : other < server;
    });
    order_.insert(at, server);
  }

  /// The donor looks again, the others only at what the receiver now knows; what has become worse
  /// is found when it would be next.
  void look_again(std::vector<Donor>& donors, const Move& made, int64_t document) override {
    for (Donor& donor : donors) {
      if (donor.server == made.donor) {
        donor = {donor.server, false, best_move(donor.server)};
        continue;
      }
      if (donor.best && donor.best->receiver == made.receiver) donor.stale = true;
      if (donor.stale || !may_take(made.receiver, donor.server)) continue;
      const auto& shards = state_.shards(donor.server);
      for (size_t index = 0; index < shards.size(); ++index) {
        if (shards[index].document != document) continue;
        look_at(donor.server, index);
        look_at(made.receiver, room(made.receiver));
        consider(donor.best);
      }
    }
  }

  void look_at(int donor, size_t index) {
    donor_ = donor;
    index_ = index;
    shard_ = state_.shards(donor)[index];
    saved_ = state_.to_shrink(donor, index, {}).price;
  }

  void look_at(int receiver, int64_t most) {
    receiver_ = receiver;
    wish_ = {.wanted = std::min(excess(donor_), most), .most = most};
  }

  /// At which some of the shard at hand can go, by bytes for rows x keys of the best shape, to
  /// servers that know nothing of the document. Lowest of all where others do or the donor saves
  /// bytes.
  double least_price_per_load() const {
    if (!price_.in_pairs() || saved_ > 0 || knowing(shard_.document).size() > 1) {
      return std::numeric_limits<double>::lowest();
    }
    const auto load = static_cast<double>(std::min(shard_.load, excess(donor_)));
    const auto width = static_cast<double>(shard_.kv.size());
    const double rows = load / width;
    const double square = std::sqrt(load / row_per_key_);  // rows of the cheapest rectangle
    const double keys = square > rows ? load / square : width;
    return key_price_ * (row_per_key_ * std::max(rows, square) + keys) / load;
  }

  /// Offers parts of the shard at hand: all of it; rows with all keys; all rows with some keys; and
  /// a corner, of the shape that moves the fewest bytes to a receiver that has none of them, or as
  /// wide as it takes for all rows to shed the excess: then the donor needs these keys no longer,
  /// in the end.
  void consider(std::optional<Move>& best) {
    const Range q = shard_.q;
    const Range kv = shard_.kv;
    if (shard_.load <= wish_.most) offer(q, kv, best);
    if (shard_.load <= wish_.wanted) return;
    offer_rows(q, kv, best);
    offer_keys(q, kv, best);
    const auto corner = [&](double width) {
      const int64_t end = round_up(kv.begin + static_cast<int64_t>(width) + 1, kBlockTokens);
      if (end < kv.end) offer_rows(q, {kv.begin, end}, best);
    };
    corner(std::sqrt(static_cast<double>(wish_.wanted) * row_per_key_));
    corner(static_cast<double>(std::min(excess(donor_), shard_.load)) /
           static_cast<double>(q.size()));
    for (const Shard& other : state_.shards(receiver_, shard_.document)) {
      consider_known(other.kv, best);
      consider_known(other.q, best);
    }
  }

  /// Offers parts within the tokens that the receiver has as keys or as rows.
  void consider_known(const Range& tokens, std::optional<Move>& best) {
    const Range keys = intersect(tokens, shard_.kv);
    if (!keys.empty() && keys != shard_.kv) {
      offer_rows(shard_.q, keys, best);
      offer_keys(shard_.q, keys, best);
    }
    const Range rows = intersect(tokens, shard_.q);
    if (!rows.empty() && rows != shard_.q) {
      offer_rows(rows, shard_.kv, best);
      offer_keys(rows, shard_.kv, best);
    }
  }

  void offer(const Range& q, const Range& keys, std::optional<Move>& best) {
    if (q.empty()) return;
    const Range kv = intersect(keys, request_.shape.mask.keys(q));
    if (kv.empty()) return;
    const Shard part = state_.with_keys(shard_.document, q, kv, shard_.home);
    if (part.load <= 0 || part.load > wish_.most) return;
    const MoveCost there = state_.to_add(receiver_, part);
    if (there.blocked || !state_.within_caps(receiver_, there.received, there.kept)) return;
    if (best && !lower(there.price - saved_, std::min(part.load, excess(donor_)), *best)) return;
    const ShardRemainder remainder = state_.without(shard_, q, kv);
    int64_t fall = shard_.load;  // by how much the donor's load falls
    for (const Shard& left : remainder.span()) fall -= left.load;
    if (fall <= 0) return;
    const MoveCost saved = state_.to_shrink(donor_, index_, remainder.span());
    const Move move{.donor = donor_,
                    .index = index_,
                    .part = part,
                    .receiver = receiver_,
                    .useful = std::min(fall, excess(donor_)),
                    .price = there.price - saved.price};
    if (!best || better(move, *best)) best = move;
  }

  void offer_rows(const Range& q, const Range& kv, std::optional<Move>& best) {
    const auto load = [&](const Range& rows) { return price_(rows, kv); };
    const Range high = highest(q, load, wish_);
    offer(high, kv, best);
    if (high != q) offer(lowest(q, load, wish_), kv, best);
  }

  void offer_keys(const Range& q, const Range& kv, std::optional<Move>& best) {
    const auto load = [&](const Range& keys) { return price_(q, keys); };
    const Range low = lowest(kv, load, wish_);
    offer(q, low, best);
    if (low != kv) offer(q, highest(kv, load, wish_), best);
  }

  const TaskPrice& price_;
  const double row_per_key_;
  /// The price of a token's K and V on the cheaper link.
  const double key_price_;
  std::vector<int> order_;                          // servers with room, most first, ties by id
  std::vector<std::pair<double, size_t>> outlook_;  // least price per load, index of the shard

  // the shard and the receiver at hand
  int donor_ = 0;
  int receiver_ = 0;
  size_t index_ = 0;
  Shard shard_;
  int64_t saved_ = 0;  // price of the bytes that only this shard needs
  LoadWish wish_;
};

}  // namespace

void give_rectangles(Assignment& state, const PlanRequest& request) {
  Giving(state, request).give();
}

void shed_rectangles(Assignment& state, const PlanRequest& request) {
  Giving giving(state, request);
  int tries = 4 * state.num_servers();
  while (tries-- > 0 && giving.shed()) {
  }
}

}  // namespace distca
