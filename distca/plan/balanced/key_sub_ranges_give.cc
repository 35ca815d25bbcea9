#include "distca/plan/balanced/key_sub_ranges_give.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "distca/plan/balanced/caps.h"
#include "distca/plan/balanced/key_sub_ranges_cuts.h"
#include "distca/plan/load_bound.h"

namespace distca {
namespace {

/// A rectangle of a donor's piece to a receiver.
struct Move {
  int donor = 0;
  size_t index = 0;  // in pieces(donor)
  Range q;
  Range kv;
  int receiver = 0;
  int64_t useful = 0;  // load that the donor loses, as far as it has too much
  int64_t price = 0;   // of bytes: what the receiver fetches less what the donor no longer does
};

/// A lower price per useful load?
bool better(int64_t price, int64_t useful, const Move& than) {
  return static_cast<double>(price) * static_cast<double>(than.useful) <
         static_cast<double>(than.price) * static_cast<double>(useful);
}
bool better(const Move& a, const Move& b) { return better(a.price, a.useful, b); }

struct Rest {
  std::array<Piece, 4> pieces;  // rows below, rows above, keys before, keys after
  size_t size = 0;
  std::span<const Piece> span() const { return {pieces.data(), size}; }
};

class Giving {
 public:
  Giving(Assignment& state, const PlanRequest& request);
  /// The move with the lowest price per useful load first, until no server is above its bound or
  /// none below can take more.
  void give();
  /// Moves what it can from the server with the highest ratio to the one with the lowest, so that
  /// the higher of the two falls. False when no server is above its bound or nothing helps.
  bool shed();

 private:
  static constexpr int64_t kCrumbs = 128;  // of them make a server's load
  static constexpr size_t kForeign = 2;    // receivers tried that know nothing of a document
  static constexpr size_t kKnowing = 16;   // receivers tried that know it
  struct Donor {
    int server;
    bool stale;  // its best move is no better than it looks
    std::optional<Move> best;
  };

  int64_t room(int server) const { return bound_[server] - state_.load(server); }
  int64_t excess(int server) const { return -room(server); }
  /// Not a crumb of room: those are for excess that finds no other.
  bool worth_a_task(int receiver) const {
    return room(receiver) > 0 &&
           room(receiver) >= std::min(excess(donor_), bound_[receiver] / kCrumbs);
  }
  /// Load per capacity.
  double ratio(int server) const {
    const auto load = static_cast<double>(state_.load(server));
    const int64_t capacity = cluster_.capacity[server];
    return capacity > 0 ? load / static_cast<double>(capacity) : load * kMuch;
  }

  void note(int64_t document, int server);
  void list_room(int server);
  std::vector<Donor> donors();
  void update(std::vector<Donor>& donors, const Move& move, int64_t document);

  void look_at(int donor, size_t index);
  void look_at(int receiver, int64_t most);
  double least_price_per_load() const;
  std::optional<Move> best_move(int donor);
  void gather_receivers();
  void consider(std::optional<Move>& best);
  void consider_known(const Range& tokens, std::optional<Move>& best);
  void offer(const Range& q, const Range& kv, std::optional<Move>& best);
  void offer_rows(const Range& q, const Range& kv, std::optional<Move>& best);
  void offer_keys(const Range& q, const Range& kv, std::optional<Move>& best);
  Rest rest_of(const Piece& piece, const Range& q, const Range& kv) const;
  void apply(const Move& move);

  static constexpr double kMuch = 1e12;
  const Cluster& cluster_;
  const int64_t window_left_;
  const TaskPrice price_;
  const double row_per_key_;  // bytes of Q and O over those of K and V
  const double key_price_;    // of K and V of a token, on the cheaper link
  Assignment& state_;
  const std::vector<int64_t> bound_;
  std::vector<int> order_;              // servers with room, most first, ties by id
  std::vector<std::vector<int>> know_;  // [document] servers that compute or hold some of it
  std::vector<int> receivers_;          // to try for the piece at hand
  std::vector<std::pair<double, size_t>> outlook_;  // least price per load, index of the piece

  // the piece and the receiver at hand
  int donor_ = 0;
  int receiver_ = 0;
  size_t index_ = 0;
  Piece piece_;
  int64_t saved_ = 0;  // price of the bytes that only this piece needs
  LoadWish wish_;
};

Giving::Giving(Assignment& state, const PlanRequest& request)
    : cluster_(request.cluster),
      window_left_(request.shape.window_left),
      price_(request.shape, request.profile.get()),
      row_per_key_(
          static_cast<double>(request.shape.q_token_bytes() + request.shape.o_token_bytes()) /
          static_cast<double>(request.shape.kv_token_bytes())),
      key_price_(
          static_cast<double>(request.shape.kv_token_bytes()) *
          static_cast<double>(std::min(byte_price(cluster_.inside), byte_price(cluster_.between)))),
      state_(state),
      bound_(load_bounds(request, state.total_load())),
      know_(request.nano_batch.documents.size()) {
  for (const HomeSegment& home : state_.homes()) note(home.document, home.worker);
  for (int server = 0; server < state_.num_servers(); ++server) {
    for (const Piece& piece : state_.pieces(server)) note(piece.document, server);
    list_room(server);
  }
}

void Giving::note(int64_t document, int server) {
  auto& know = know_[document];
  if (std::find(know.begin(), know.end(), server) == know.end()) know.push_back(server);
}

/// Puts the server where it belongs in order_, or out of it.
void Giving::list_room(int server) {
  std::erase(order_, server);
  const int64_t left = room(server);
  if (left <= 0) return;
  const auto at = std::partition_point(order_.begin(), order_.end(), [&](int other) {
    return room(other) != left ? room(other) > left : other < server;
  });
  order_.insert(at, server);
}

void Giving::offer_rows(const Range& q, const Range& kv, std::optional<Move>& best) {
  const Range high = highest_rows(price_, q, kv, wish_);
  offer(high, kv, best);
  if (high != q) offer(lowest_rows(price_, q, kv, wish_), kv, best);
}

void Giving::offer_keys(const Range& q, const Range& kv, std::optional<Move>& best) {
  const Range low = lowest_keys(price_, q, kv, wish_);
  offer(q, low, best);
  if (low != kv) offer(q, highest_keys(price_, q, kv, wish_), best);
}

Rest Giving::rest_of(const Piece& piece, const Range& q, const Range& kv) const {
  Rest rest;
  const auto keep = [&](const Range& rows, const Range& keys) {
    if (rows.empty()) return;
    const Range seen = intersect(keys, visible_keys(rows, window_left_));
    if (attention_pairs(rows, seen, MaskType::kCausal, window_left_) == 0) return;
    rest.pieces[rest.size++] = state_.with_keys(piece.document, rows, seen, piece.home);
  };
  keep({piece.q.begin, q.begin}, piece.kv);
  keep({q.end, piece.q.end}, piece.kv);
  keep(q, {piece.kv.begin, kv.begin});
  keep(q, {kv.end, piece.kv.end});
  return rest;
}

void Giving::offer(const Range& q, const Range& keys, std::optional<Move>& best) {
  if (q.empty()) return;
  const Range kv = intersect(keys, visible_keys(q, window_left_));
  if (kv.empty()) return;
  const Piece part = state_.with_keys(piece_.document, q, kv, piece_.home);
  if (part.load <= 0 || part.load > wish_.most) return;
  const Toll there = state_.to_add(receiver_, part);
  if (there.blocked ||
      (cluster_.max_receive_bytes > 0 &&
       state_.receive_bytes(receiver_) + there.received > cluster_.max_receive_bytes)) {
    return;
  }
  if (cluster_.max_memory_bytes > 0 &&
      state_.memory_bytes(receiver_) + there.kept > cluster_.max_memory_bytes) {
    return;
  }
  if (best && !better(there.price - saved_, std::min(part.load, excess(donor_)), *best)) return;
  const Rest rest = rest_of(piece_, q, kv);
  int64_t fall = piece_.load;  // of the donor's load
  for (const Piece& left : rest.span()) fall -= left.load;
  if (fall <= 0) return;
  const Toll saved = state_.to_shrink(donor_, index_, rest.span());
  const Move move{.donor = donor_,
                  .index = index_,
                  .q = q,
                  .kv = kv,
                  .receiver = receiver_,
                  .useful = std::min(fall, excess(donor_)),
                  .price = there.price - saved.price};
  if (!best || better(move, *best)) best = move;
}

void Giving::look_at(int donor, size_t index) {
  donor_ = donor;
  index_ = index;
  piece_ = state_.pieces(donor)[index];
  saved_ = state_.to_shrink(donor, index, {}).price;
}

void Giving::look_at(int receiver, int64_t most) {
  receiver_ = receiver;
  wish_ = {.wanted = std::min(excess(donor_), most), .most = most};
}

/// At which some of the piece at hand can go, by bytes for rows x keys of the best shape, to
/// servers that know nothing of the document. Lowest of all where others do or the donor saves
/// bytes.
double Giving::least_price_per_load() const {
  if (!price_.in_pairs() || saved_ > 0 || know_[piece_.document].size() > 1) {
    return std::numeric_limits<double>::lowest();
  }
  const auto load = static_cast<double>(std::min(piece_.load, excess(donor_)));
  const auto width = static_cast<double>(piece_.kv.size());
  const double rows = load / width;
  const double square = std::sqrt(load / row_per_key_);  // rows of the cheapest rectangle
  const double keys = square > rows ? load / square : width;
  return key_price_ * (row_per_key_ * std::max(rows, square) + keys) / load;
}

/// Of the piece at hand: all of it; rows with all keys; all rows with some keys; and a corner, of
/// the shape that moves the fewest bytes to who has none of them, or as wide as it takes for all
/// rows to shed the excess: then the donor needs these keys no longer, in the end.
void Giving::consider(std::optional<Move>& best) {
  const Range q = piece_.q;
  const Range kv = piece_.kv;
  if (piece_.load <= wish_.most) offer(q, kv, best);
  if (piece_.load <= wish_.wanted) return;
  offer_rows(q, kv, best);
  offer_keys(q, kv, best);
  const auto corner = [&](double width) {
    const int64_t end = kv.begin + round_up(static_cast<int64_t>(width) + 1, kBlockTokens);
    if (end < kv.end) offer_rows(q, {kv.begin, end}, best);
  };
  corner(std::sqrt(static_cast<double>(wish_.wanted) * row_per_key_));
  corner(static_cast<double>(std::min(excess(donor_), piece_.load)) /
         static_cast<double>(q.size()));
  for (const Piece& other : state_.pieces(receiver_, piece_.document)) {
    consider_known(other.kv, best);
    consider_known(other.q, best);
  }
}

/// What the receiver has as keys or as rows.
void Giving::consider_known(const Range& tokens, std::optional<Move>& best) {
  const Range keys = intersect(tokens, piece_.kv);
  if (!keys.empty() && keys != piece_.kv) {
    offer_rows(piece_.q, keys, best);
    offer_keys(piece_.q, keys, best);
  }
  const Range rows = intersect(tokens, piece_.q);
  if (!rows.empty() && rows != piece_.q) {
    offer_rows(rows, piece_.kv, best);
    offer_keys(rows, piece_.kv, best);
  }
}

/// Those that know the document, those with most room, and the tightest ones that can take all.
void Giving::gather_receivers() {
  receivers_.clear();
  const auto add = [&](int server) {
    if (server != donor_ && worth_a_task(server) &&
        std::find(receivers_.begin(), receivers_.end(), server) == receivers_.end()) {
      receivers_.push_back(server);
    }
  };
  for (const int64_t load : {excess(donor_), piece_.load}) {
    const auto end = std::partition_point(order_.begin(), order_.end(),
                                          [&](int server) { return room(server) >= load; });
    if (end != order_.begin()) add(end[-1]);
  }
  for (size_t i = 0; i < std::min(kForeign, order_.size()); ++i) add(order_[i]);
  // Of many the last ones: they took something, so they read keys.
  const auto& know = know_[piece_.document];
  const size_t enough = receivers_.size() + kKnowing;
  for (size_t i = know.size(); i > 0 && receivers_.size() < enough; --i) add(know[i - 1]);
}

std::optional<Move> Giving::best_move(int donor) {
  const size_t count = state_.pieces(donor).size();
  outlook_.clear();
  for (size_t index = 0; index < count; ++index) {
    look_at(donor, index);
    outlook_.emplace_back(least_price_per_load(), index);
  }
  std::sort(outlook_.begin(), outlook_.end());
  std::optional<Move> best;
  for (const auto& [least, index] : outlook_) {
    if (best && least * static_cast<double>(best->useful) > static_cast<double>(best->price)) break;
    look_at(donor, index);
    gather_receivers();
    for (const int receiver : receivers_) {
      look_at(receiver, room(receiver));
      consider(best);
    }
  }
  if (best || !has_caps(cluster_)) return best;
  for (size_t index = 0; index < count; ++index) {
    look_at(donor, index);
    for (const int receiver : order_) {  // caps may forbid the likely ones
      look_at(receiver, room(receiver));
      consider(best);
    }
  }
  return best;
}

void Giving::apply(const Move& move) {
  const Piece from = state_.pieces(move.donor)[move.index];
  const Rest rest = rest_of(from, move.q, move.kv);
  state_.shrink(move.donor, move.index, rest.span());
  state_.add(move.receiver, state_.with_keys(from.document, move.q, move.kv, from.home));
  note(from.document, move.receiver);
  list_room(move.donor);
  list_room(move.receiver);
}

std::vector<Giving::Donor> Giving::donors() {
  std::vector<Donor> result;
  for (int server = 0; server < state_.num_servers(); ++server) {
    if (excess(server) > 0) result.push_back({server, false, best_move(server)});
  }
  return result;
}

/// After a move of rows or keys of `document`: the donor looks again, the others only at what the
/// receiver now knows; what has become worse is found when it would be next.
void Giving::update(std::vector<Donor>& donors, const Move& move, int64_t document) {
  std::erase_if(donors, [this](const Donor& donor) { return excess(donor.server) <= 0; });
  for (Donor& donor : donors) {
    if (donor.server == move.donor) {
      donor.best = best_move(donor.server);
      donor.stale = false;
      continue;
    }
    if (donor.best && donor.best->receiver == move.receiver) donor.stale = true;
    donor_ = donor.server;
    if (donor.stale || !worth_a_task(move.receiver)) continue;
    const auto& pieces = state_.pieces(donor.server);
    for (size_t index = 0; index < pieces.size(); ++index) {
      if (pieces[index].document != document) continue;
      look_at(donor.server, index);
      look_at(move.receiver, room(move.receiver));
      consider(donor.best);
    }
  }
}

bool Giving::shed() {
  int donor = -1;
  int receiver = -1;
  for (int server = 0; server < state_.num_servers(); ++server) {
    if (excess(server) > 0 && (donor < 0 || ratio(server) > ratio(donor))) donor = server;
    if (cluster_.capacity[server] > 0 && (receiver < 0 || ratio(server) < ratio(receiver))) {
      receiver = server;
    }
  }
  if (donor < 0 || receiver < 0 || donor == receiver) return false;
  // Less than this, and the receiver stays below where the donor was.
  const double most =
      (ratio(donor) - ratio(receiver)) * static_cast<double>(cluster_.capacity[receiver]);
  if (most < 2) return false;
  std::optional<Move> best;
  for (size_t index = 0; index < state_.pieces(donor).size(); ++index) {
    look_at(donor, index);
    look_at(receiver, static_cast<int64_t>(std::min(most, 1e18)) - 1);
    consider(best);
  }
  if (best) apply(*best);
  return best.has_value();
}

void Giving::give() {
  std::vector<Donor> waiting = donors();
  for (;;) {
    Donor* next = nullptr;
    for (Donor& donor : waiting) {
      if (donor.best && (next == nullptr || better(*donor.best, *next->best))) next = &donor;
    }
    if (next == nullptr) break;
    if (next->stale) {
      next->best = best_move(next->server);
      next->stale = false;
      continue;
    }
    const Move move = *next->best;
    const int64_t document = state_.pieces(move.donor)[move.index].document;
    apply(move);
    update(waiting, move, document);
  }
}

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
