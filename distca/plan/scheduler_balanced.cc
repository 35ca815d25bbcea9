#include "distca/plan/scheduler_balanced.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>

#include "distca/plan/assignment.h"
#include "distca/plan/shard_rows.h"

namespace distca {
namespace {

/// floor(a * b / c) without overflow, for b, c < 2^31 and a * b / c within int64.
int64_t scale(int64_t a, int64_t b, int64_t c) { return a / c * b + a % c * b / c; }

struct Move {
  int donor = 0;
  size_t index = 0;  // in pieces(donor)
  Range q;
  int receiver = 0;
  int64_t load = 0;    // that the receiver gets
  int64_t useful = 0;  // of it, what the donor has too much
  int64_t price = 0;   // of bytes: what the receiver fetches less what the donor no longer does
};

/// A lower price per useful load? Between equals the receiver whose room is used up most.
bool better(const Move& a, const Move& b) {
  return static_cast<double>(a.price) * static_cast<double>(b.useful) <
         static_cast<double>(b.price) * static_cast<double>(a.useful);
}

/// Servers by room, most first, ties by id.
class ByRoom {
 public:
  explicit ByRoom(const std::vector<int64_t>& room) : room_(room), order_(room.size()) {
    std::iota(order_.begin(), order_.end(), 0);
    std::sort(order_.begin(), order_.end(), [this](int a, int b) { return before(a, b); });
  }
  const std::vector<int>& order() const { return order_; }
  int64_t room(int server) const { return room_[server]; }
  void set(int server, int64_t room) {
    order_.erase(place(server));
    room_[server] = room;
    order_.insert(place(server), server);
  }
  /// Index in order() of the last server with at least this room; -1: none.
  int64_t last_with(int64_t room) const {
    return std::partition_point(order_.begin(), order_.end(),
                                [&](int server) { return room_[server] >= room; }) -
           order_.begin() - 1;
  }

 private:
  bool before(int a, int b) const { return room_[a] != room_[b] ? room_[a] > room_[b] : a < b; }
  std::vector<int>::iterator place(int server) {
    return std::lower_bound(order_.begin(), order_.end(), server,
                            [this](int a, int b) { return before(a, b); });
  }
  std::vector<int64_t> room_;
  std::vector<int> order_;
};

struct Rest {
  std::array<Piece, 2> pieces;
  size_t size = 0;
  std::span<const Piece> span() const { return {pieces.data(), size}; }
};

Rest rest_of(const Assignment& state, const Piece& piece, const Range& q) {
  Rest rest;
  for (const Range& part : {Range{piece.q.begin, q.begin}, Range{q.end, piece.q.end}}) {
    if (!part.empty()) {
      rest.pieces[rest.size++] = state.whole_context(piece.document, part, piece.home);
    }
  }
  return rest;
}

std::vector<int64_t> rooms(const Assignment& state, const PlanRequest& request) {
  int64_t total = 0;
  for (int server = 0; server < state.num_servers(); ++server) total += state.load(server);
  const auto& capacities = request.cluster.capacity;
  const int64_t capacity = std::accumulate(capacities.begin(), capacities.end(), int64_t{0});
  std::vector<int64_t> result;
  for (int server = 0; server < state.num_servers(); ++server) {
    const int64_t mean = scale(total, capacities[server], capacity);
    result.push_back(mean + scale(mean, request.options.tolerance_ppm, 1'000'000) -
                     state.load(server));
  }
  return result;
}

class Balanced {
 public:
  Balanced(const PlanRequest& request, const Layout& layout);
  std::vector<Task> run();

 private:
  static constexpr size_t kForeign = 2;  // receivers tried that know nothing of a document

  int64_t room(int server) const { return by_room_.room(server); }
  int64_t excess(int server) const { return -room(server); }
  double ratio(int server, int64_t load) const {
    const auto units = static_cast<double>(load);
    return capacity_[server] > 0 ? units / static_cast<double>(capacity_[server]) : units * 1e6;
  }

  void balance();
  std::optional<Move> best_move(int donor);
  void gather_receivers(int donor, const Piece& piece);
  void consider(int receiver, int donor, size_t index, std::optional<Move>& best) const;
  std::optional<Move> priced(int receiver, int donor, size_t index, const Range& q) const;
  void apply(const Move& move);
  bool shed_one_block();

  const Cluster& cluster_;
  const std::vector<int64_t>& capacity_;
  const ShardRows rows_;
  Assignment state_;
  ByRoom by_room_;
  std::vector<std::vector<int>> know_;  // [document] servers that hold or read some of it
  std::vector<int> receivers_;          // to try for the piece at hand
};

Balanced::Balanced(const PlanRequest& request, const Layout& layout)
    : cluster_(request.cluster),
      capacity_(request.cluster.capacity),
      rows_(request.shape, request.profile.get()),
      state_(request, layout),
      by_room_(rooms(state_, request)),
      know_(request.nano_batch.documents.size()) {
  for (const HomeSegment& home : state_.homes()) {
    auto& know = know_[home.document];
    if (std::find(know.begin(), know.end(), home.worker) == know.end()) know.push_back(home.worker);
  }
}

std::optional<Move> Balanced::priced(int receiver, int donor, size_t index, const Range& q) const {
  const Piece& from = state_.pieces(donor)[index];
  const Piece piece = state_.whole_context(from.document, q, from.home);
  const Toll there = state_.to_add(receiver, piece);
  if (there.blocked) return std::nullopt;
  if (cluster_.max_receive_bytes > 0 &&
      state_.receive_bytes(receiver) + there.received > cluster_.max_receive_bytes) {
    return std::nullopt;
  }
  if (cluster_.max_memory_bytes > 0 &&
      state_.memory_bytes(receiver) + there.kept > cluster_.max_memory_bytes) {
    return std::nullopt;
  }
  const Rest rest = rest_of(state_, from, q);
  const Toll saved = state_.to_shrink(donor, index, rest.span());
  return Move{.donor = donor,
              .index = index,
              .q = q,
              .receiver = receiver,
              .load = piece.load,
              .useful = std::min(piece.load, excess(donor)),
              .price = there.price - saved.price};
}

void Balanced::consider(int receiver, int donor, size_t index, std::optional<Move>& best) const {
  const Piece& piece = state_.pieces(donor)[index];
  const int64_t most = room(receiver);
  const int64_t wanted = std::min(excess(donor), most);
  const auto offer = [&](const std::optional<Range>& q) {
    if (!q) return;
    const auto move = priced(receiver, donor, index, *q);
    if (move && (!best || better(*move, *best))) best = move;
  };
  if (piece.load <= most) offer(piece.q);
  if (piece.load <= wanted) return;
  offer(rows_.ending_at(piece.q.end, piece.q, wanted, most));
  offer(rows_.from_begin(piece.q, wanted, most));
  offer(rows_.ending_at(rows_.cheapest_end(piece.q, piece.load, wanted), piece.q, wanted, most));
  const int64_t held = round_down(state_.keys_end(receiver, piece.document), kBlockTokens);
  if (held > piece.q.begin && held < piece.q.end) {
    offer(rows_.ending_at(held, piece.q, wanted, most));
  }
}

/// Those that know the document, those with most room, and the tightest ones that can take all.
void Balanced::gather_receivers(int donor, const Piece& piece) {
  receivers_.clear();
  const auto& order = by_room_.order();
  const auto add = [&](int server) {
    if (server != donor && room(server) > 0 &&
        std::find(receivers_.begin(), receivers_.end(), server) == receivers_.end()) {
      receivers_.push_back(server);
    }
  };
  for (const int64_t load : {excess(donor), piece.load}) {
    const int64_t tightest = by_room_.last_with(load);
    if (tightest >= 0) add(order[tightest]);
  }
  for (size_t i = 0; i < std::min(kForeign, order.size()); ++i) add(order[i]);
  for (const int server : know_[piece.document]) add(server);
}

std::optional<Move> Balanced::best_move(int donor) {
  std::optional<Move> best;
  for (size_t index = 0; index < state_.pieces(donor).size(); ++index) {
    gather_receivers(donor, state_.pieces(donor)[index]);
    for (const int receiver : receivers_) consider(receiver, donor, index, best);
  }
  if (best) return best;
  for (const int receiver : by_room_.order()) {  // caps may forbid the likely ones
    if (room(receiver) <= 0) break;
    for (size_t index = 0; index < state_.pieces(donor).size(); ++index) {
      consider(receiver, donor, index, best);
    }
  }
  return best;
}

void Balanced::apply(const Move& move) {
  const Piece from = state_.pieces(move.donor)[move.index];
  const Rest rest = rest_of(state_, from, move.q);
  const auto update = [this](int server, const auto& change) {
    const int64_t before = state_.load(server);
    change();
    by_room_.set(server, room(server) + before - state_.load(server));
  };
  update(move.donor, [&] { state_.shrink(move.donor, move.index, rest.span()); });
  update(move.receiver, [&] {
    state_.add(move.receiver, state_.whole_context(from.document, move.q, from.home));
  });
  auto& know = know_[from.document];
  if (std::find(know.begin(), know.end(), move.receiver) == know.end())
    know.push_back(move.receiver);
}

/// Lazily: a move that is out of date is as good as it can be, so it is looked at again only when
/// it would be next.
void Balanced::balance() {
  struct Donor {
    int server;
    bool stale;
    std::optional<Move> best;
  };
  std::vector<Donor> donors;
  for (int server = 0; server < state_.num_servers(); ++server) {
    if (excess(server) > 0) donors.push_back({server, false, best_move(server)});
  }
  for (;;) {
    Donor* next = nullptr;
    for (Donor& donor : donors) {
      if (donor.best && (!next || better(*donor.best, *next->best))) next = &donor;
    }
    if (!next) break;
    if (next->stale) {
      next->best = best_move(next->server);
      next->stale = false;
      continue;
    }
    const Move move = *next->best;
    const int64_t document = state_.pieces(move.donor)[move.index].document;
    apply(move);
    std::erase_if(donors, [this](const Donor& donor) { return excess(donor.server) <= 0; });
    for (Donor& donor : donors) {
      if (donor.server == move.donor || !state_.pieces(donor.server, document).empty()) {
        donor.best = best_move(donor.server);
        donor.stale = false;
      } else if (donor.best && donor.best->receiver == move.receiver) {
        donor.stale = true;
      }
    }
  }
}

/// Moves one block from the most loaded server to the least loaded one, the block that leaves the
/// higher of the two lowest. False when the bound is met or no block helps.
bool Balanced::shed_one_block() {
  int donor = -1;
  int receiver = -1;
  for (int server = 0; server < state_.num_servers(); ++server) {
    const double here = ratio(server, state_.load(server));
    if (excess(server) > 0 && (donor < 0 || here > ratio(donor, state_.load(donor)))) {
      donor = server;
    }
    if (capacity_[server] > 0 && (receiver < 0 || here < ratio(receiver, state_.load(receiver)))) {
      receiver = server;
    }
  }
  if (donor < 0 || donor == receiver) return false;

  std::optional<Move> best;
  double lowest = ratio(donor, state_.load(donor));
  for (size_t index = 0; index < state_.pieces(donor).size(); ++index) {
    const Range q = state_.pieces(donor)[index].q;
    for (const Range& block : {Range{q.begin, std::min(q.begin + kBlockTokens, q.end)},
                               Range{round_down(q.end - 1, kBlockTokens), q.end}}) {
      const auto move = priced(receiver, donor, index, block);
      if (!move) continue;
      const double after = std::max(ratio(donor, state_.load(donor) - move->load),
                                    ratio(receiver, state_.load(receiver) + move->load));
      if (after < lowest || (best && after == lowest && move->price < best->price)) {
        best = move;
        lowest = after;
      }
    }
  }
  if (best) apply(*best);
  return best.has_value();
}

std::vector<Task> Balanced::run() {
  balance();
  while (shed_one_block()) {
  }
  return state_.tasks();
}

}  // namespace

std::vector<Task> schedule_balanced(const PlanRequest& request, const Layout& layout) {
  return Balanced(request, layout).run();
}

}  // namespace distca
