#pragma once
// The bookkeeping behind key_sub_ranges.cc: who computes which rectangle of queries x keys, and
// what changes in bytes when one changes hands. Not thread-safe: one object a thread.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "distca/cost/task_price.h"
#include "distca/plan/plan.h"

namespace distca {

/// Queries x keys of one segment, computed by one server; cut by the mask. Never empty of pairs.
struct Tile {
  int64_t document = 0;
  int64_t segment_end = 0;  // names the segment within its document
  Range q;
  Range kv;
  int64_t price = 0;  // as TaskPrice
};

/// What a tile leaves when a rectangle is cut out of it: rows above, rows below, keys left, right.
using Remainder = std::array<Tile, 4>;

class Tiles {
 public:
  /// Every query where it lives, with all its keys.
  Tiles(const PlanRequest& request, const Layout& layout);

  int num_servers() const { return static_cast<int>(servers_.size()); }
  int64_t load(int server) const { return servers_[server].load; }
  /// Most a server should have: its share of all load, and the tolerance.
  int64_t bound(int server) const { return servers_[server].bound; }
  std::span<const Tile> tiles(int server) const { return servers_[server].tiles; }
  std::span<const Segment> homes(int server, int64_t document) const;
  int64_t price(const Range& q, const Range& kv) const;
  /// The part of `kv` that queries `q` may see, at multiples of 128.
  Range seen(const Range& q, const Range& kv) const;

  /// Tokens of `range` that `server` neither holds nor fetches yet.
  int64_t missing_q(int server, int64_t document, const Range& range) const;
  int64_t missing_kv(int server, int64_t document, const Range& range) const;
  /// Tokens of `range` that `server` holds or fetches.
  std::vector<Range> known_kv(int server, int64_t document) const;

  /// Bytes that `donor` no longer fetches when `q` x `kv` of its tile goes.
  int64_t saved_bytes(int donor, size_t tile, const Range& q, const Range& kv) const;
  /// Moves `q` x `kv` of a donor's tile. Indices of the donor's tiles change.
  void move(int donor, size_t tile, const Range& q, const Range& kv, int receiver);
  /// Replaces some of a server's tiles.
  void replace(int server, std::span<const size_t> taken, std::span<const Tile> given);

  /// Bytes that `server` fetches (O included) for `document` if these are its tiles of it.
  int64_t fetched_bytes(int server, int64_t document, std::span<const Tile> tiles) const;

  std::vector<Task> tasks() const;
  int64_t q_bytes() const { return q_bytes_; }    // Q there and O back
  int64_t kv_bytes() const { return kv_bytes_; }  // K and V

 private:
  struct Fetched {
    int64_t document = 0;
    std::vector<Range> q;  // ascending, disjoint, without what is at home
    std::vector<Range> kv;
  };
  struct Server {
    int64_t load = 0;
    int64_t bound = 0;
    std::vector<Tile> tiles;
    std::vector<Segment> homes;    // ascending
    std::vector<Fetched> fetched;  // ascending document
  };

  const Fetched* find_fetched(int server, int64_t document) const;
  void refetch(int server, int64_t document);
  void remainder(const Tile& tile, const Range& q, const Range& kv, std::vector<Tile>& out) const;
  static int64_t outside(std::span<const Segment> homes, const std::vector<Range>& sorted,
                         std::vector<Range>* out);
  static void unite(std::vector<Range>& ranges);

  TaskPrice price_;
  int64_t window_left_;
  int64_t q_bytes_;
  int64_t kv_bytes_;
  std::vector<Server> servers_;
  mutable std::vector<Range> scratch_;
  mutable std::vector<Tile> rest_;
};

}  // namespace distca
