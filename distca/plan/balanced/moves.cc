#include "distca/plan/balanced/moves.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "distca/plan/balanced/caps.h"
#include "distca/plan/load_bound.h"

namespace distca {
namespace {

/// What is left of a piece without the rows q.
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

std::vector<int64_t> rooms(const Assignment& state, const std::vector<int64_t>& bound) {
  std::vector<int64_t> result;
  for (int server = 0; server < state.num_servers(); ++server) {
    result.push_back(bound[server] - state.load(server));
  }
  return result;
}

/// Keys of the longest document: what it takes to serve any one shard.
int64_t fair_receive(const PlanRequest& request) {
  int64_t longest = 0;
  for (const Document& document : request.nano_batch.documents) {
    longest = std::max(longest, document.length);
  }
  return longest * request.shape.kv_token_bytes();
}

}  // namespace

ByRoom::ByRoom(std::vector<int64_t> room) : room_(std::move(room)), order_(room_.size()) {
  std::iota(order_.begin(), order_.end(), 0);
  std::sort(order_.begin(), order_.end(), [this](int a, int b) { return before(a, b); });
}

std::vector<int>::iterator ByRoom::place(int server) {
  return std::lower_bound(order_.begin(), order_.end(), server,
                          [this](int a, int b) { return before(a, b); });
}

void ByRoom::set(int server, int64_t room) {
  order_.erase(place(server));
  room_[server] = room;
  order_.insert(place(server), server);
}

int ByRoom::tightest(int64_t room) const {
  const auto less = std::partition_point(order_.begin(), order_.end(),
                                         [&](int server) { return room_[server] >= room; });
  return less == order_.begin() ? -1 : *(less - 1);
}

Mover::Mover(const PlanRequest& request, const Layout& layout)
    : cluster_(request.cluster),
      capacity_(request.cluster.capacity),
      state_(request, layout),
      rows_(request.shape, state_.task_price()),
      fair_receive_(fair_receive(request)),
      least_row_price_(std::min(byte_price(cluster_.inside), byte_price(cluster_.between)) *
                       (request.shape.q_token_bytes() + request.shape.o_token_bytes())),
      bound_(load_bounds(request, state_.total_load())),
      crumb_(state_.total_load() / state_.num_servers() / 100),
      by_room_(rooms(state_, bound_)),
      know_(request.nano_batch.documents.size()) {
  for (const HomeSegment& home : state_.homes()) {
    auto& know = know_[home.document];
    if (std::find(know.begin(), know.end(), home.worker) == know.end()) know.push_back(home.worker);
  }
}

/// Load per capacity; a server of capacity 0 should end with none, so its load outweighs all.
double Mover::ratio(int server, int64_t load) const {
  const auto units = static_cast<double>(load);
  return capacity_[server] > 0 ? units / static_cast<double>(capacity_[server]) : units * 1e12;
}

double Mover::score(double price, int64_t useful) const {
  const auto load = static_cast<double>(useful);
  double eighth = 1;  // load^(larger_first / 8)
  const double root = larger_first_ > 0 ? std::sqrt(std::sqrt(std::sqrt(load))) : 1;
  for (int i = 0; i < larger_first_; ++i) eighth *= root;
  return price / (load * eighth);
}

std::optional<Move> Mover::priced(int receiver, int donor, size_t index, const Range& q) const {
  const Piece& from = state_.pieces(donor)[index];
  const Piece piece = state_.whole_context(from.document, q, from.home);
  const Toll there = state_.to_add(receiver, piece);
  const int64_t received = state_.receive_bytes(receiver) + there.received;
  const int64_t memory = state_.memory_bytes(receiver) + there.kept;
  if (there.blocked || (cluster_.max_receive_bytes > 0 && received > cluster_.max_receive_bytes) ||
      (cluster_.max_memory_bytes > 0 && memory > cluster_.max_memory_bytes)) {
    return std::nullopt;
  }
  const Rest rest = rest_of(state_, from, q);
  Move move{.donor = donor, .index = index, .q = q, .receiver = receiver, .load = piece.load};
  move.price = there.price - state_.to_shrink(donor, index, rest.span()).price;
  // Bytes beyond the fair limit count twice: several receivers rather than one.
  const int64_t beyond = std::min(received - fair_receive_, there.received);
  auto price = static_cast<double>(move.price);
  if (beyond > 0) {
    price += static_cast<double>(there.price) * static_cast<double>(beyond) /
             static_cast<double>(there.received);
  }
  move.score = score(price, std::min(piece.load, excess(donor)));
  return move;
}

void Mover::consider(int receiver, int donor, size_t index, std::optional<Move>& best) const {
  const Piece& piece = state_.pieces(donor)[index];
  const int64_t most = room(receiver);
  const int64_t wanted = std::min(excess(donor), most);
  const auto offer = [&](const std::optional<Range>& q) {
    if (!q) return;
    const auto move = priced(receiver, donor, index, *q);
    if (move && (!best || move->score < best->score)) best = move;
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

std::vector<Range> Mover::rows_of_excess(int donor, const Piece& piece) const {
  if (piece.load <= excess(donor)) return {piece.q};
  std::vector<Range> result;
  for (const auto& rows : {rows_.ending_at(piece.q.end, piece.q, excess(donor), piece.load),
                           rows_.from_begin(piece.q, excess(donor), piece.load)}) {
    if (rows) result.push_back(*rows);
  }
  return result;
}

/// Those that know the document, those with most room, and the tightest ones that can take all.
void Mover::gather_receivers(int donor, const Piece& piece) {
  receivers_.clear();
  const int64_t least = std::max<int64_t>(1, std::min(excess(donor), crumb_));
  const auto add = [&](int server) {
    if (server != donor && room(server) >= least &&
        std::find(receivers_.begin(), receivers_.end(), server) == receivers_.end()) {
      receivers_.push_back(server);
    }
  };
  for (const int64_t load : {excess(donor), piece.load}) {
    const int tightest = by_room_.tightest(load);
    if (tightest >= 0) add(tightest);
  }
  const auto& order = by_room_.order();
  for (size_t i = 0; i < std::min(kStrangers, order.size()); ++i) add(order[i]);
  // Of many the last ones: they took rows, so they read keys.
  const auto& know = know_[piece.document];
  const size_t enough = receivers_.size() + kKnowing;
  for (size_t i = know.size(); i > 0 && receivers_.size() < enough; --i) add(know[i - 1]);
}

/// No shard of the piece can have a lower score: a document's head that the donor holds, so that
/// every row has to travel and no key is saved. 0 where that is not so simple.
double Mover::least_score(int donor, const Piece& piece) const {
  if (!state_.task_price().in_pairs() || piece.q.begin > 0) return 0;
  if (state_.homes()[piece.home].worker != donor) return 0;
  const int64_t load = std::min(piece.load, excess(donor));
  const double rows = static_cast<double>(load) / static_cast<double>(piece.q.end);
  return score(rows * static_cast<double>(least_row_price_), load);
}

std::optional<Move> Mover::best_move(int donor) {
  std::optional<Move> best;
  for (size_t index = 0; index < state_.pieces(donor).size(); ++index) {
    if (best && least_score(donor, state_.pieces(donor)[index]) >= best->score) continue;
    gather_receivers(donor, state_.pieces(donor)[index]);
    for (const int receiver : receivers_) consider(receiver, donor, index, best);
  }
  if (best || !has_caps(cluster_)) return best;
  for (const int receiver : by_room_.order()) {  // caps forbid the likely ones
    if (room(receiver) <= 0) break;
    for (size_t index = 0; index < state_.pieces(donor).size(); ++index) {
      consider(receiver, donor, index, best);
    }
  }
  return best;
}

void Mover::give(int from, size_t index, Range q, int to) {
  const Piece piece = state_.pieces(from)[index];
  const Rest rest = rest_of(state_, piece, q);
  state_.shrink(from, index, rest.span());
  state_.add(to, state_.whole_context(piece.document, q, piece.home));
  for (const int server : {from, to}) by_room_.set(server, bound_[server] - state_.load(server));
  auto& know = know_[piece.document];
  if (std::find(know.begin(), know.end(), to) == know.end()) know.push_back(to);
}

void Mover::undo_trial() {
  state_.undo_trial();
  for (const int server : state_.touched()) {
    by_room_.set(server, bound_[server] - state_.load(server));
  }
}

/// Lazily: a move gets no better while rooms shrink, so it is looked at again only when it would be
/// next.
void Mover::balance(int larger_first) {
  larger_first_ = larger_first;
  std::vector<Donor> donors;
  for (int server = 0; server < state_.num_servers(); ++server) {
    if (excess(server) > 0) donors.push_back({server, false, best_move(server)});
  }
  for (;;) {
    Donor* next = nullptr;
    for (Donor& donor : donors) {
      if (donor.best && (!next || donor.best->score < next->best->score)) next = &donor;
    }
    if (!next) break;
    if (next->stale) {
      *next = {next->server, false, best_move(next->server)};
      continue;
    }
    const Move move = *next->best;
    const int64_t document = state_.pieces(move.donor)[move.index].document;
    apply(move);
    std::erase_if(donors, [this](const Donor& donor) { return excess(donor.server) <= 0; });
    size_t looked_at = 0;
    for (Donor& donor : donors) {
      const bool shares = !state_.pieces(donor.server, document).empty();
      if (donor.server == move.donor || (shares && ++looked_at <= kSharing)) {
        donor = {donor.server, false, best_move(donor.server)};
      } else if (shares || (donor.best && donor.best->receiver == move.receiver)) {
        donor.stale = true;
      }
    }
  }
}

/// The server that would have the least load for its capacity; -1: there is no other.
int Mover::lightest_with(int64_t more, int donor) const {
  int lightest = -1;
  for (int server = 0; server < state_.num_servers(); ++server) {
    if (server == donor || capacity_[server] == 0) continue;
    if (lightest < 0 ||
        ratio(server, state_.load(server) + more) < ratio(lightest, state_.load(lightest) + more)) {
      lightest = server;
    }
  }
  return lightest;
}

bool Mover::shed_one_block() {
  int donor = -1;
  for (int server = 0; server < state_.num_servers(); ++server) {
    const double here = ratio(server, state_.load(server));
    if (excess(server) > 0 && (donor < 0 || here > ratio(donor, state_.load(donor)))) {
      donor = server;
    }
  }
  if (donor < 0) return false;

  std::optional<Move> best;
  double lowest = ratio(donor, state_.load(donor));
  for (size_t index = 0; index < state_.pieces(donor).size(); ++index) {
    const Range q = state_.pieces(donor)[index].q;
    for (const Range& block : {Range{q.begin, std::min(q.begin + kBlockTokens, q.end)},
                               Range{round_down(q.end - 1, kBlockTokens), q.end}}) {
      const int receiver = lightest_with(state_.load_of(block), donor);
      if (receiver < 0) return false;
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

int64_t Mover::price() const {
  int64_t price = state_.price();
  for (int server = 0; server < state_.num_servers(); ++server) {
    const int64_t beyond = state_.receive_bytes(server) - fair_receive_;
    if (beyond > 0) price += beyond * byte_price(cluster_.between);
  }
  return price;
}

}  // namespace distca
