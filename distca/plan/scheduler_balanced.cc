#include "distca/plan/scheduler_balanced.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>

#include "distca/plan/assignment.h"
#include "distca/plan/shard_shape.h"

namespace distca {
namespace {

/// floor(a * b / c) without overflow, for b, c < 2^31 and a * b / c within int64.
int64_t scale(int64_t a, int64_t b, int64_t c) { return a / c * b + a % c * b / c; }

struct Move {
  int donor = 0;
  size_t index = 0;  // in pieces(donor)
  Range q;
  int64_t load = 0;    // that the receiver gets
  int64_t useful = 0;  // of it, what the donor has too much
  int64_t price = 0;   // of bytes: what the receiver fetches less what the donor no longer does
};

/// A lower price per useful load?
bool better(const Move& a, const Move& b) {
  return static_cast<double>(a.price) * static_cast<double>(b.useful) <
         static_cast<double>(b.price) * static_cast<double>(a.useful);
}

class Balanced {
 public:
  Balanced(const PlanRequest& request, const Layout& layout);
  std::vector<Task> run();

 private:
  int64_t excess(int server) const { return state_.load(server) - bound_[server]; }
  int64_t room(int server) const { return -excess(server); }
  double ratio(int server, int64_t load) const {
    const auto units = static_cast<double>(load);
    return capacity_[server] > 0 ? units / static_cast<double>(capacity_[server]) : units * 1e6;
  }

  void balance();
  std::optional<Move> best_move(int receiver) const;
  void consider(int receiver, int donor, size_t index, std::optional<Move>& best) const;
  std::optional<Range> rows_ending_at(int64_t end, const Range& q, int64_t wanted,
                                      int64_t most) const;
  std::optional<Range> rows_from_begin(const Range& q, int64_t wanted, int64_t most) const;
  std::optional<Move> priced(int receiver, int donor, size_t index, const Range& q) const;
  void apply(int receiver, const Move& move);
  bool shed_one_block();

  const Cluster& cluster_;
  const AttentionShape& shape_;
  const std::vector<int64_t>& capacity_;
  const bool closed_form_;  // pairs of all keys: no search for a shard's rows
  Assignment state_;
  std::vector<int64_t> bound_;
  std::vector<int> donors_;
};

Balanced::Balanced(const PlanRequest& request, const Layout& layout)
    : cluster_(request.cluster),
      shape_(request.shape),
      capacity_(request.cluster.capacity),
      closed_form_(request.profile == nullptr && request.shape.window_left < 0),
      state_(request, layout) {
  int64_t total = 0;
  for (int server = 0; server < state_.num_servers(); ++server) total += state_.load(server);
  const int64_t capacity = std::accumulate(capacity_.begin(), capacity_.end(), int64_t{0});
  for (size_t server = 0; server < capacity_.size(); ++server) {
    const int64_t mean = scale(total, capacity_[server], capacity);
    bound_.push_back(mean + scale(mean, request.options.tolerance_ppm, 1'000'000));
  }
}

/// The rows below `end` of about `wanted` load, at most `most`.
std::optional<Range> Balanced::rows_ending_at(int64_t end, const Range& q, int64_t wanted,
                                              int64_t most) const {
  int64_t begin = 0;
  if (closed_form_) {
    const double middle = static_cast<double>(end) + 0.5;
    const double root =
        std::sqrt(std::max(0.0, middle * middle - 2.0 * static_cast<double>(wanted)));
    begin = std::max(q.begin, round_down(static_cast<int64_t>(root - 0.5), kBlockTokens));
  } else {
    int64_t low = q.begin / kBlockTokens;
    int64_t high = ceil_div(end, kBlockTokens) - 1;
    while (low < high) {  // the highest begin that reaches `wanted`
      const int64_t middle = (low + high + 1) / 2;
      if (state_.load_of({middle * kBlockTokens, end}) >= wanted) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    begin = std::max(q.begin, low * kBlockTokens);
  }
  // The larger piece first: it ends the donor's excess in one move instead of leaving a crumb.
  if (state_.load_of({begin, end}) > most) begin += kBlockTokens;
  if (begin >= end || state_.load_of({begin, end}) > most) return std::nullopt;
  return Range{begin, end};
}

/// The first rows of q, likewise.
std::optional<Range> Balanced::rows_from_begin(const Range& q, int64_t wanted, int64_t most) const {
  int64_t low = q.begin / kBlockTokens + 1;
  int64_t high = ceil_div(q.end, kBlockTokens);
  if (closed_form_) {
    const double below = static_cast<double>(q.begin) + 0.5;
    const double root = std::sqrt(below * below + 2.0 * static_cast<double>(wanted));
    low = std::clamp(static_cast<int64_t>(root - 0.5) / kBlockTokens + 1, low, high);
  } else {
    while (low < high) {  // the lowest end that reaches `wanted`
      const int64_t middle = (low + high) / 2;
      const int64_t end = std::min(middle * kBlockTokens, q.end);
      if (state_.load_of({q.begin, end}) >= wanted) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
  }
  int64_t end = std::min(low * kBlockTokens, q.end);
  if (state_.load_of({q.begin, end}) > most) end = round_down(end - 1, kBlockTokens);
  if (end <= q.begin || state_.load_of({q.begin, end}) > most) return std::nullopt;
  return Range{q.begin, end};
}

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
  const auto cut = [&piece](int64_t end) {
    end = round_down(end, kBlockTokens);
    return piece.q.end - end < kBlockTokens ? piece.q.end
                                            : std::max(end, piece.q.begin + kBlockTokens);
  };
  offer(rows_ending_at(piece.q.end, piece.q, wanted, most));
  offer(rows_from_begin(piece.q, wanted, most));
  const ShardShape shape =
      cheapest_shard(static_cast<double>(piece.q.size()), static_cast<double>(piece.q.end),
                     static_cast<double>(wanted) / static_cast<double>(piece.load),
                     static_cast<double>(shape_.q_token_bytes() + shape_.o_token_bytes()),
                     static_cast<double>(shape_.kv_token_bytes()));
  offer(rows_ending_at(cut(static_cast<int64_t>(shape.n_kv) + kBlockTokens / 2), piece.q, wanted,
                       most));
  const int64_t held = state_.keys_end(receiver, piece.document);
  if (held >= piece.q.begin + kBlockTokens && held < piece.q.end) {
    offer(rows_ending_at(cut(held), piece.q, wanted, most));
  }
}

std::optional<Move> Balanced::best_move(int receiver) const {
  std::optional<Move> best;
  for (const int donor : donors_) {
    for (size_t index = 0; index < state_.pieces(donor).size(); ++index) {
      consider(receiver, donor, index, best);
    }
  }
  return best;
}

void Balanced::apply(int receiver, const Move& move) {
  const Piece from = state_.pieces(move.donor)[move.index];
  const Rest rest = rest_of(state_, from, move.q);
  state_.shrink(move.donor, move.index, rest.span());
  state_.add(receiver, state_.whole_context(from.document, move.q, from.home));
}

void Balanced::balance() {
  const int servers = state_.num_servers();
  std::vector<std::optional<Move>> best(servers);
  donors_.clear();
  for (int server = 0; server < servers; ++server) {
    if (excess(server) > 0) donors_.push_back(server);
  }
  const auto renew = [&](int server) {
    best[server] = room(server) > 0 ? best_move(server) : std::nullopt;
  };
  for (int server = 0; server < servers; ++server) renew(server);
  while (!donors_.empty()) {
    int receiver = -1;
    for (int server = 0; server < servers; ++server) {
      if (best[server] && (receiver < 0 || better(*best[server], *best[receiver])))
        receiver = server;
    }
    if (receiver < 0) break;
    const Move move = *best[receiver];
    apply(receiver, move);
    if (excess(move.donor) <= 0) std::erase(donors_, move.donor);
    for (int server = 0; server < servers; ++server) {
      if (server == receiver || server == move.donor ||
          (best[server] && best[server]->donor == move.donor)) {
        renew(server);
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
  if (best) apply(receiver, *best);
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
