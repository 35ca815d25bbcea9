#include "distca/plan/key_sub_ranges_give.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace distca {
namespace {

struct Candidate {
  int donor = -1;
  size_t tile = 0;
  Range q;
  Range kv;
  int64_t price = 0;
  double cost = 0;  // change of bytes, less what later moves of the same kind will save
};

bool better(const Candidate& a, const Candidate& b) {
  return a.cost * static_cast<double>(b.price) < b.cost * static_cast<double>(a.price);
}

/// The largest cut in (low, high], a multiple of 128 (or high), at which `fits`; low if none.
template <typename Fits>
int64_t highest_cut(int64_t low, int64_t high, const Fits& fits) {
  if (fits(high)) return high;
  int64_t yes = low / kBlockTokens;
  int64_t no = ceil_div(high, kBlockTokens);
  while (no - yes > 1) {
    const int64_t middle = (yes + no) / 2;
    (fits(middle * kBlockTokens) ? yes : no) = middle;
  }
  return std::max(low, yes * kBlockTokens);
}

/// The smallest cut in [low, high), a multiple of 128 (or low), at which `fits`; high if none.
template <typename Fits>
int64_t lowest_cut(int64_t low, int64_t high, const Fits& fits) {
  if (fits(low)) return low;
  int64_t no = low / kBlockTokens;
  int64_t yes = ceil_div(high, kBlockTokens);
  while (yes - no > 1) {
    const int64_t middle = (yes + no) / 2;
    (fits(middle * kBlockTokens) ? yes : no) = middle;
  }
  return std::min(high, yes * kBlockTokens);
}

class Giving {
 public:
  Giving(Tiles& tiles, const GiveOptions& options) : tiles_(tiles), options_(options) {}

  void run() {
    const int n = tiles_.num_servers();
    std::vector<Candidate> best(n);
    for (int s = 0; s < n; ++s) {
      if (tiles_.load(s) > tiles_.bound(s)) donors_.push_back(s);
    }
    for (int s = 0; s < n; ++s) {
      if (tiles_.load(s) < tiles_.bound(s)) best[s] = find(s);
    }
    while (!donors_.empty()) {
      int chosen = -1;
      for (int s = 0; s < n; ++s) {
        if (best[s].donor >= 0 && (chosen < 0 || better(best[s], best[chosen]))) chosen = s;
      }
      if (chosen < 0) break;
      const Candidate move = best[chosen];
      tiles_.move(move.donor, move.tile, move.q, move.kv, chosen);
      if (tiles_.load(move.donor) <= tiles_.bound(move.donor)) std::erase(donors_, move.donor);
      for (int s = 0; s < n; ++s) {
        if (s == chosen || best[s].donor == move.donor) best[s] = find(s);
      }
    }
  }

 private:
  Candidate find(int receiver) {
    best_ = {};
    receiver_ = receiver;
    const int64_t deficit = tiles_.bound(receiver) - tiles_.load(receiver);
    if (deficit <= 0) return best_;
    for (const int donor : donors_) {
      donor_ = donor;
      surplus_ = tiles_.load(donor) - tiles_.bound(donor);
      area_ = std::min(deficit, surplus_);
      deficit_ = deficit;
      const auto tiles = tiles_.tiles(donor);
      for (tile_ = 0; tile_ < tiles.size(); ++tile_) shapes(tiles[tile_]);
    }
    return best_;
  }

  void offer(const Range& q, const Range& kv, double later = 0) {
    if (q.empty() || kv.empty()) return;
    const Range cut = tiles_.seen(q, kv);
    if (cut.empty()) return;
    Candidate candidate{donor_, tile_, q, cut, tiles_.price(q, cut), 0};
    if (candidate.price <= 0 || candidate.price > deficit_) return;
    const Tile& tile = tiles_.tiles(donor_)[tile_];
    candidate.cost =
        static_cast<double>(tiles_.missing_q(receiver_, tile.document, q) * tiles_.q_bytes() +
                            tiles_.missing_kv(receiver_, tile.document, cut) * tiles_.kv_bytes());
    const int64_t saved = tiles_.saved_bytes(donor_, tile_, q, cut);
    candidate.cost -= std::max(static_cast<double>(saved), later);
    // More than the surplus counts as the surplus: it need not have moved.
    if (candidate.price > surplus_) {
      candidate.cost *= static_cast<double>(candidate.price) / static_cast<double>(surplus_);
    }
    if (best_.donor < 0 || better(candidate, best_)) best_ = candidate;
  }

  int64_t top(const Range& q, const Range& kv) const {
    return lowest_cut(q.begin, q.end, [&](int64_t x) {
      const Range rows{x, q.end};
      return tiles_.price(rows, tiles_.seen(rows, kv)) <= area_;
    });
  }
  int64_t bottom(const Range& q, const Range& kv) const {
    return highest_cut(q.begin, q.end, [&](int64_t x) {
      const Range rows{q.begin, x};
      return tiles_.price(rows, tiles_.seen(rows, kv)) <= area_;
    });
  }
  int64_t left(const Range& q, const Range& kv) const {
    return highest_cut(kv.begin, kv.end,
                       [&](int64_t m) { return tiles_.price(q, {kv.begin, m}) <= area_; });
  }
  int64_t right(const Range& q, const Range& kv) const {
    return lowest_cut(kv.begin, kv.end,
                      [&](int64_t m) { return tiles_.price(q, {m, kv.end}) <= area_; });
  }

  void shapes(const Tile& tile) {
    if (tile.price <= area_) {
      offer(tile.q, tile.kv);
      return;
    }
    const Range q = tile.q;
    const Range kv = tile.kv;
    offer({top(q, kv), q.end}, kv);
    const int64_t low_rows = bottom(q, kv);
    offer({q.begin, low_rows}, kv);
    const double area = static_cast<double>(area_);
    const double ratio =
        static_cast<double>(tiles_.q_bytes()) / static_cast<double>(tiles_.kv_bytes());
    if (!options_.columns) {
      const int64_t end = round_down(static_cast<int64_t>(std::sqrt(area * ratio)), kBlockTokens);
      if (end > q.begin && end < q.end) offer({top({q.begin, end}, kv), end}, kv);
      return;
    }
    offer(q, {kv.begin, left(q, kv)});
    offer(q, {right(q, kv), kv.end});
    columns(q, kv, kv.begin + round_up(static_cast<int64_t>(std::sqrt(area * ratio)), kBlockTokens),
            0);
    const auto strip = static_cast<int64_t>(static_cast<double>(std::min(surplus_, tile.price)) /
                                            static_cast<double>(q.size()));
    const int64_t end = kv.begin + round_up(strip, kBlockTokens);
    columns(q, kv, end, 1);
    known(tile);
  }

  /// Top and bottom rows x the keys up to `end`.
  void columns(const Range& q, const Range& kv, int64_t end, int credit) {
    const Range keys{kv.begin, std::min(end, kv.end)};
    const auto later = [&](const Range& rows) {
      return credit == 0 ? 0.0
                         : static_cast<double>(keys.size() * tiles_.kv_bytes()) *
                               static_cast<double>(rows.size()) / static_cast<double>(q.size());
    };
    const Range top_rows{top(q, keys), q.end};
    offer(top_rows, keys, later(top_rows));
    const Range low_rows{q.begin, bottom(q, keys)};
    offer(low_rows, keys, later(low_rows));
  }

  /// Keys that the receiver has.
  void known(const Tile& tile) {
    if (tiles_.homes(receiver_, tile.document).empty() &&
        tiles_.missing_kv(receiver_, tile.document, tile.kv) == tile.kv.size()) {
      return;
    }
    for (const Range& range : tiles_.known_kv(receiver_, tile.document)) {
      const Range keys = intersect(range, tile.kv);
      if (keys.empty()) continue;
      offer({top(tile.q, keys), tile.q.end}, keys);
      offer({tile.q.begin, bottom(tile.q, keys)}, keys);
      offer(tile.q, {keys.begin, left(tile.q, keys)});
      offer(tile.q, {right(tile.q, keys), keys.end});
    }
    for (const Segment& home : tiles_.homes(receiver_, tile.document)) {
      const Range rows = intersect(home.tokens, tile.q);
      if (rows.empty()) continue;
      offer(rows, {tile.kv.begin, left(rows, tile.kv)});
      offer({top(rows, tile.kv), rows.end}, tile.kv);
    }
  }

  Tiles& tiles_;
  const GiveOptions& options_;
  std::vector<int> donors_;
  Candidate best_;
  int receiver_ = 0;
  int donor_ = 0;
  size_t tile_ = 0;
  int64_t surplus_ = 0;
  int64_t deficit_ = 0;
  int64_t area_ = 0;
};

}  // namespace

void give_rectangles(Tiles& tiles, const GiveOptions& options) { Giving(tiles, options).run(); }

}  // namespace distca
