#include "distca/plan/key_sub_ranges_give.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>

namespace distca {
namespace {

/// floor(a * b / c) without overflow, for b, c < 2^31 and a * b / c within int64.
int64_t scale(int64_t a, int64_t b, int64_t c) { return a / c * b + a % c * b / c; }

struct Move {
  int donor = -1;
  size_t index = 0;  // in pieces(donor)
  Range q;
  Range kv;
  int receiver = -1;
  int64_t load = 0;   // that the receiver gets
  double useful = 0;  // of it, what the donor has too much
  double price = 0;   // of bytes
};

bool better(const Move& a, const Move& b) { return a.price * b.useful < b.price * a.useful; }

struct Rest {
  std::array<Piece, 4> pieces;
  size_t size = 0;
  std::span<const Piece> span() const { return {pieces.data(), size}; }
};

class Giving {
 public:
  Giving(Assignment& state, const PlanRequest& request);
  void run();

 private:
  static constexpr size_t kForeign = 2;  // receivers tried that know nothing of a document
  struct Donor {
    int server;
    bool stale;
    std::optional<Move> best;
  };

  int64_t room(int server) const { return bound_[server] - state_.load(server); }
  int64_t excess(int server) const { return -room(server); }

  std::optional<Move> best_move(int donor);
  void gather_receivers(int donor, const Piece& piece);
  void consider(int receiver, int donor, size_t index, std::optional<Move>& best);
  void offer(const Range& q, const Range& kv, double later = 0);
  void rows_and_keys(const Range& q, const Range& kv, double later_per_row);
  Rest rest_of(const Piece& piece, const Range& q, const Range& kv) const;
  void apply(const Move& move);

  int64_t load_of(const Range& q, const Range& kv) const { return price_(q, kv); }
  template <typename Part>
  Range enough(int64_t blocks, const Part& part, const Range& q, const Range& kv, bool rows) const;
  Range top(const Range& q, const Range& kv) const;
  Range bottom(const Range& q, const Range& kv) const;
  Range left(const Range& q, const Range& kv) const;
  Range right(const Range& q, const Range& kv) const;

  const PlanRequest& request_;
  const Cluster& cluster_;
  const int64_t window_left_;
  const TaskPrice price_;
  const double row_per_key_;  // bytes
  const double key_price_;
  Assignment& state_;
  std::vector<int64_t> bound_;
  std::vector<int> order_;              // servers with room, most first
  std::vector<std::vector<int>> know_;  // [document] servers that hold or read some of it
  std::vector<int> receivers_;

  // of the piece and the receiver at hand
  int donor_ = 0;
  int receiver_ = 0;
  size_t index_ = 0;
  int64_t wanted_ = 0;
  int64_t most_ = 0;
  std::optional<Move>* best_ = nullptr;
};

Giving::Giving(Assignment& state, const PlanRequest& request)
    : request_(request),
      cluster_(request.cluster),
      window_left_(request.shape.window_left),
      price_(request.shape, request.profile.get()),
      row_per_key_(
          static_cast<double>(request.shape.q_token_bytes() + request.shape.o_token_bytes()) /
          static_cast<double>(request.shape.kv_token_bytes())),
      key_price_(static_cast<double>(request.shape.kv_token_bytes()) *
                 static_cast<double>(
                     std::max<int64_t>(1, 1'000'000 / request.cluster.between.bytes_per_us))),
      state_(state),
      bound_(load_bounds(state, request)),
      know_(request.nano_batch.documents.size()) {
  for (int server = 0; server < state_.num_servers(); ++server) {
    for (const Piece& piece : state_.pieces(server)) {
      auto& know = know_[piece.document];
      if (know.empty() || know.back() != server) know.push_back(server);
    }
  }
  for (const HomeSegment& home : state_.homes()) {
    auto& know = know_[home.document];
    if (std::find(know.begin(), know.end(), home.worker) == know.end()) know.push_back(home.worker);
  }
}

template <typename Part>
Range Giving::enough(int64_t blocks, const Part& part, const Range& q, const Range& kv,
                     bool rows) const {
  const auto load = [&](int64_t n) {
    const Range range = part(n);
    return rows ? load_of(range, kv) : load_of(q, range);
  };
  int64_t low = 1;
  int64_t high = blocks;
  while (low < high) {  // the fewest that reach `wanted_`
    const int64_t middle = (low + high) / 2;
    if (load(middle) >= wanted_) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  if (load(low) > most_) --low;
  return low > 0 ? part(low) : Range{};
}

Range Giving::top(const Range& q, const Range& kv) const {
  const int64_t last = ceil_div(q.end, kBlockTokens);
  return enough(
      last - q.begin / kBlockTokens,
      [&](int64_t n) {
        return Range{std::max(q.begin, (last - n) * kBlockTokens), q.end};
      },
      q, kv, true);
}
Range Giving::bottom(const Range& q, const Range& kv) const {
  return enough(
      ceil_div(q.size(), kBlockTokens),
      [&](int64_t n) {
        return Range{q.begin, std::min(q.end, q.begin + n * kBlockTokens)};
      },
      q, kv, true);
}
Range Giving::left(const Range& q, const Range& kv) const {
  return enough(
      ceil_div(kv.size(), kBlockTokens),
      [&](int64_t n) {
        return Range{kv.begin, std::min(kv.end, kv.begin + n * kBlockTokens)};
      },
      q, kv, false);
}
Range Giving::right(const Range& q, const Range& kv) const {
  const int64_t last = ceil_div(kv.end, kBlockTokens);
  return enough(
      last - kv.begin / kBlockTokens,
      [&](int64_t n) {
        return Range{std::max(kv.begin, (last - n) * kBlockTokens), kv.end};
      },
      q, kv, false);
}

Rest Giving::rest_of(const Piece& piece, const Range& q, const Range& kv) const {
  Rest rest;
  const auto keep = [&](const Range& rows, const Range& keys) {
    if (rows.empty()) return;
    const Range seen = intersect(keys, visible_keys(rows, window_left_));
    if (seen.empty() || attention_pairs(rows, seen, MaskType::kCausal, window_left_) == 0) return;
    rest.pieces[rest.size++] = state_.with_keys(piece.document, rows, seen, piece.home);
  };
  keep({piece.q.begin, q.begin}, piece.kv);
  keep({q.end, piece.q.end}, piece.kv);
  keep(q, {piece.kv.begin, kv.begin});
  keep(q, {kv.end, piece.kv.end});
  return rest;
}

void Giving::offer(const Range& q, const Range& keys, double later) {
  if (q.empty() || keys.empty()) return;
  const Range kv = intersect(keys, visible_keys(q, window_left_));
  if (kv.empty()) return;
  const Piece& from = state_.pieces(donor_)[index_];
  const Piece piece = state_.with_keys(from.document, q, kv, from.home);
  if (piece.load <= 0 || piece.load > most_) return;
  const Toll there = state_.to_add(receiver_, piece);
  if (there.blocked) return;
  if (cluster_.max_receive_bytes > 0 &&
      state_.receive_bytes(receiver_) + there.received > cluster_.max_receive_bytes) {
    return;
  }
  if (cluster_.max_memory_bytes > 0 &&
      state_.memory_bytes(receiver_) + there.kept > cluster_.max_memory_bytes) {
    return;
  }
  const Rest rest = rest_of(from, q, kv);
  const double saved = static_cast<double>(state_.to_shrink(donor_, index_, rest.span()).price);
  const Move move{donor_,
                  index_,
                  q,
                  kv,
                  receiver_,
                  piece.load,
                  static_cast<double>(std::min(piece.load, excess(donor_))),
                  static_cast<double>(there.price) - std::max(saved, later)};
  if (!*best_ || better(move, **best_)) *best_ = move;
}

/// The top and the bottom rows of q that make a shard of `wanted_` with keys kv only.
void Giving::rows_and_keys(const Range& q, const Range& kv, double later_per_row) {
  const Range high = top(q, kv);
  offer(high, kv, later_per_row * static_cast<double>(high.size()));
  const Range low = bottom(q, kv);
  if (low != high) offer(low, kv, later_per_row * static_cast<double>(low.size()));
}

void Giving::consider(int receiver, int donor, size_t index, std::optional<Move>& best) {
  const Piece piece = state_.pieces(donor)[index];
  donor_ = donor;
  receiver_ = receiver;
  index_ = index;
  best_ = &best;
  most_ = room(receiver);
  wanted_ = std::min(excess(donor), most_);
  if (piece.load <= most_) offer(piece.q, piece.kv);
  if (piece.load <= wanted_) return;
  const Range& q = piece.q;
  const Range& kv = piece.kv;
  rows_and_keys(q, kv, 0);
  offer(q, left(q, kv));
  offer(q, right(q, kv));

  const auto keys_up_to = [&](double keys) {
    return Range{kv.begin, std::min(kv.end, kv.begin + round_up(static_cast<int64_t>(keys) + 1,
                                                                kBlockTokens))};
  };
  rows_and_keys(q, keys_up_to(std::sqrt(static_cast<double>(wanted_) * row_per_key_)), 0);
  const Range strip = keys_up_to(static_cast<double>(std::min(excess(donor), piece.load)) /
                                 static_cast<double>(q.size()));
  rows_and_keys(q, strip,
                key_price_ * static_cast<double>(strip.size()) / static_cast<double>(q.size()));

  const auto known = [&](const Range& tokens) {
    const Range keys = intersect(tokens, kv);
    if (!keys.empty() && keys != kv) {
      rows_and_keys(q, keys, 0);
      offer(q, left(q, keys));
      offer(q, right(q, keys));
    }
    const Range rows = intersect(tokens, q);
    if (!rows.empty() && rows != q) {
      offer(rows, left(rows, kv));
      offer(top(rows, kv), kv);
    }
  };
  for (const Piece& other : state_.pieces(receiver, piece.document)) {
    known(other.kv);
    known(other.q);
  }
  // TODO homes
}

/// Those that know the document, those with most room, and the tightest ones that can take all.
void Giving::gather_receivers(int donor, const Piece& piece) {
  receivers_.clear();
  const auto add = [&](int server) {
    if (server != donor && room(server) > 0 &&
        std::find(receivers_.begin(), receivers_.end(), server) == receivers_.end()) {
      receivers_.push_back(server);
    }
  };
  for (const int64_t load : {excess(donor), piece.load}) {
    const int64_t tightest =
        std::partition_point(order_.begin(), order_.end(), [&](int s) { return room(s) >= load; }) -
        order_.begin() - 1;
    if (tightest >= 0) add(order_[tightest]);
  }
  for (size_t i = 0; i < std::min(kForeign, order_.size()); ++i) add(order_[i]);
  for (const int server : know_[piece.document]) add(server);
}

std::optional<Move> Giving::best_move(int donor) {
  std::optional<Move> best;
  for (size_t index = 0; index < state_.pieces(donor).size(); ++index) {
    gather_receivers(donor, state_.pieces(donor)[index]);
    for (const int receiver : receivers_) consider(receiver, donor, index, best);
  }
  if (best) return best;
  for (const int receiver : order_) {  // caps may forbid the likely ones
    for (size_t index = 0; index < state_.pieces(donor).size(); ++index) {
      consider(receiver, donor, index, best);
    }
  }
  return best;
}

void Giving::apply(const Move& move) {
  const Piece from = state_.pieces(move.donor)[move.index];
  const Rest rest = rest_of(from, move.q, move.kv);
  state_.shrink(move.donor, move.index, rest.span());
  state_.add(move.receiver, state_.with_keys(from.document, move.q, move.kv, from.home));
  auto& know = know_[from.document];
  if (std::find(know.begin(), know.end(), move.receiver) == know.end()) {
    know.push_back(move.receiver);
  }
  std::erase(order_, move.receiver);
  const int64_t left = room(move.receiver);
  if (left <= 0) return;
  const auto at = std::partition_point(order_.begin(), order_.end(), [&](int s) {
    return room(s) != left ? room(s) > left : s < move.receiver;
  });
  order_.insert(at, move.receiver);
}

void Giving::run() {
  std::vector<Donor> donors;
  for (int server = 0; server < state_.num_servers(); ++server) {
    if (room(server) > 0) order_.push_back(server);
    if (excess(server) > 0) donors.push_back({server, true, std::nullopt});
  }
  std::sort(order_.begin(), order_.end(),
            [this](int a, int b) { return room(a) != room(b) ? room(a) > room(b) : a < b; });
  for (Donor& donor : donors) {
    donor.best = best_move(donor.server);
    donor.stale = false;
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
      if (donor.server == move.donor) {
        donor.best = best_move(donor.server);
        donor.stale = false;
        continue;
      }
      if (donor.best && donor.best->receiver == move.receiver) donor.stale = true;
      if (donor.stale || room(move.receiver) <= 0) continue;
      const auto& pieces = state_.pieces(donor.server);
      for (size_t index = 0; index < pieces.size(); ++index) {
        if (pieces[index].document == document) {
          consider(move.receiver, donor.server, index, donor.best);
        }
      }
    }
  }
}

}  // namespace

std::vector<int64_t> load_bounds(const Assignment& state, const PlanRequest& request) {
  int64_t total = 0;
  for (int server = 0; server < state.num_servers(); ++server) total += state.load(server);
  const auto& capacities = request.cluster.capacity;
  const int64_t capacity = std::accumulate(capacities.begin(), capacities.end(), int64_t{0});
  std::vector<int64_t> result;
  for (int server = 0; server < state.num_servers(); ++server) {
    const int64_t mean = scale(total, capacities[server], capacity);
    result.push_back(mean + scale(mean, request.options.tolerance_ppm, 1'000'000));
  }
  return result;
}

void give_rectangles(Assignment& state, const PlanRequest& request) {
  Giving(state, request).run();
}

}  // namespace distca
