#include "distca/plan/key_sub_ranges_tiles.h"

#include <algorithm>
#include <tuple>

namespace distca {
namespace {

int64_t overlap(std::span<const Segment> homes, const Range& range) {
  int64_t tokens = 0;
  for (const Segment& home : homes) {
    tokens += std::max<int64_t>(0, intersect(home.tokens, range).size());
  }
  return tokens;
}

int64_t overlap(const std::vector<Range>& ranges, const Range& range) {
  int64_t tokens = 0;
  for (const Range& r : ranges) tokens += std::max<int64_t>(0, intersect(r, range).size());
  return tokens;
}

}  // namespace

Tiles::Tiles(const PlanRequest& request, const Layout& layout)
    : price_(request.shape, request.profile.get()),
      window_left_(request.shape.window_left),
      q_bytes_(request.shape.q_token_bytes() + request.shape.o_token_bytes()),
      kv_bytes_(request.shape.kv_token_bytes()),
      servers_(request.cluster.num_servers()) {
  int64_t total = 0;
  for (int worker = 0; worker < layout.num_workers(); ++worker) {
    Server& server = servers_[worker];
    server.homes = layout.workers[worker];
    std::sort(server.homes.begin(), server.homes.end());
    for (const Segment& home : server.homes) {
      const Range kv = visible_keys(home.tokens, window_left_);
      server.tiles.push_back(
          {home.document, home.tokens.end, home.tokens, kv, price(home.tokens, kv)});
      server.load += server.tiles.back().price;
    }
    total += server.load;
    for (size_t i = 0; i < server.homes.size(); ++i) {
      const int64_t document = server.homes[i].document;
      const bool whole = server.homes[i].tokens.begin == 0;
      const bool again = i > 0 && server.homes[i - 1].document == document;
      const bool more = i + 1 < server.homes.size() && server.homes[i + 1].document == document;
      if (!again && (!whole || more)) refetch(worker, document);
    }
  }
  int64_t capacity = 0;
  for (const int64_t share : request.cluster.capacity) capacity += share;
  for (int s = 0; s < num_servers(); ++s) {
    const int64_t share = request.cluster.capacity[s];
    const int64_t mean = total / capacity * share + total % capacity * share / capacity;
    servers_[s].bound = mean + mean / 1'000'000 * request.options.tolerance_ppm +
                        mean % 1'000'000 * request.options.tolerance_ppm / 1'000'000;
  }
}

int64_t Tiles::price(const Range& q, const Range& kv) const {
  return price_(q, kv, MaskType::kCausal);
}

Range Tiles::seen(const Range& q, const Range& kv) const {
  return intersect(kv, visible_keys(q, window_left_));
}

std::span<const Segment> Tiles::homes(int server, int64_t document) const {
  const auto& homes = servers_[server].homes;
  const auto begin =
      std::partition_point(homes.begin(), homes.end(),
                           [document](const Segment& s) { return s.document < document; });
  auto end = begin;
  while (end != homes.end() && end->document == document) ++end;
  return {begin, end};
}

const Tiles::Fetched* Tiles::find_fetched(int server, int64_t document) const {
  const auto& fetched = servers_[server].fetched;
  const auto at =
      std::partition_point(fetched.begin(), fetched.end(),
                           [document](const Fetched& f) { return f.document < document; });
  return at != fetched.end() && at->document == document ? &*at : nullptr;
}

int64_t Tiles::missing_q(int server, int64_t document, const Range& range) const {
  const Fetched* fetched = find_fetched(server, document);
  return range.size() - overlap(homes(server, document), range) -
         (fetched != nullptr ? overlap(fetched->q, range) : 0);
}

int64_t Tiles::missing_kv(int server, int64_t document, const Range& range) const {
  const Fetched* fetched = find_fetched(server, document);
  return range.size() - overlap(homes(server, document), range) -
         (fetched != nullptr ? overlap(fetched->kv, range) : 0);
}

std::vector<Range> Tiles::known_kv(int server, int64_t document) const {
  std::vector<Range> known;
  for (const Segment& home : homes(server, document)) known.push_back(home.tokens);
  if (const Fetched* fetched = find_fetched(server, document)) {
    known.insert(known.end(), fetched->kv.begin(), fetched->kv.end());
  }
  unite(known);
  return known;
}

void Tiles::unite(std::vector<Range>& ranges) {
  std::sort(ranges.begin(), ranges.end());
  size_t kept = 0;
  for (const Range& range : ranges) {
    if (range.empty()) continue;
    if (kept > 0 && ranges[kept - 1].end >= range.begin) {
      ranges[kept - 1].end = std::max(ranges[kept - 1].end, range.end);
    } else {
      ranges[kept++] = range;
    }
  }
  ranges.resize(kept);
}

/// Tokens of `sorted` (ascending, disjoint) that are not at home.
int64_t Tiles::outside(std::span<const Segment> homes, const std::vector<Range>& sorted,
                       std::vector<Range>* out) {
  int64_t tokens = 0;
  for (const Range& range : sorted) {
    int64_t at = range.begin;
    const auto emit = [&](int64_t end) {
      if (end <= at) return;
      tokens += end - at;
      if (out != nullptr) out->push_back({at, end});
    };
    for (const Segment& home : homes) {
      if (home.tokens.end <= at) continue;
      if (home.tokens.begin >= range.end) break;
      emit(std::min(home.tokens.begin, range.end));
      at = std::max(at, home.tokens.end);
    }
    emit(range.end);
  }
  return tokens;
}

int64_t Tiles::fetched_bytes(int server, int64_t document, std::span<const Tile> tiles) const {
  const auto home = homes(server, document);
  scratch_.clear();
  for (const Tile& tile : tiles) scratch_.push_back(tile.kv);
  unite(scratch_);
  int64_t bytes = kv_bytes_ * outside(home, scratch_, nullptr);
  scratch_.clear();
  for (const Tile& tile : tiles) scratch_.push_back(tile.q);
  unite(scratch_);
  return bytes + q_bytes_ * outside(home, scratch_, nullptr);
}

void Tiles::refetch(int server_index, int64_t document) {
  Server& server = servers_[server_index];
  auto at = std::partition_point(server.fetched.begin(), server.fetched.end(),
                                 [document](const Fetched& f) { return f.document < document; });
  if (at == server.fetched.end() || at->document != document) {
    at = server.fetched.insert(at, {document, {}, {}});
  }
  at->q.clear();
  at->kv.clear();
  const auto home = homes(server_index, document);
  scratch_.clear();
  for (const Tile& tile : server.tiles) {
    if (tile.document == document) scratch_.push_back(tile.kv);
  }
  unite(scratch_);
  outside(home, scratch_, &at->kv);
  scratch_.clear();
  for (const Tile& tile : server.tiles) {
    if (tile.document == document) scratch_.push_back(tile.q);
  }
  unite(scratch_);
  outside(home, scratch_, &at->q);
}

void Tiles::remainder(const Tile& tile, const Range& q, const Range& kv,
                      std::vector<Tile>& out) const {
  const auto keep = [&](const Range& rows, const Range& keys) {
    if (rows.empty()) return;
    const Range cut = seen(rows, keys);
    if (cut.empty()) return;
    const int64_t cost = price(rows, cut);
    if (cost > 0) out.push_back({tile.document, tile.segment_end, rows, cut, cost});
  };
  keep({tile.q.begin, q.begin}, tile.kv);
  keep({q.end, tile.q.end}, tile.kv);
  keep(q, {tile.kv.begin, kv.begin});
  keep(q, {kv.end, tile.kv.end});
}

int64_t Tiles::saved_bytes(int donor, size_t index, const Range& q, const Range& kv) const {
  const Server& server = servers_[donor];
  const Tile& tile = server.tiles[index];
  const Fetched* fetched = find_fetched(donor, tile.document);
  if (fetched == nullptr) return 0;
  rest_.clear();
  for (size_t i = 0; i < server.tiles.size(); ++i) {
    if (i != index && server.tiles[i].document == tile.document) rest_.push_back(server.tiles[i]);
  }
  remainder(tile, q, kv, rest_);
  int64_t now = 0;
  for (const Range& range : fetched->kv) now += kv_bytes_ * range.size();
  for (const Range& range : fetched->q) now += q_bytes_ * range.size();
  return now - fetched_bytes(donor, tile.document, rest_);
}

void Tiles::move(int donor, size_t index, const Range& q, const Range& kv, int receiver) {
  const Tile tile = servers_[donor].tiles[index];
  rest_.clear();
  remainder(tile, q, kv, rest_);
  const size_t taken[] = {index};
  const std::vector<Tile> rest = rest_;
  replace(donor, taken, rest);
  const Range cut = seen(q, kv);
  const Tile given[] = {{tile.document, tile.segment_end, q, cut, price(q, cut)}};
  replace(receiver, {}, given);
}

void Tiles::replace(int server_index, std::span<const size_t> taken, std::span<const Tile> given) {
  Server& server = servers_[server_index];
  std::vector<int64_t> documents;
  for (const size_t index : taken) {
    server.load -= server.tiles[index].price;
    documents.push_back(server.tiles[index].document);
    server.tiles[index].price = -1;
  }
  std::erase_if(server.tiles, [](const Tile& tile) { return tile.price < 0; });
  for (const Tile& tile : given) {
    server.load += tile.price;
    documents.push_back(tile.document);
    server.tiles.push_back(tile);
  }
  std::sort(documents.begin(), documents.end());
  documents.erase(std::unique(documents.begin(), documents.end()), documents.end());
  for (const int64_t document : documents) refetch(server_index, document);
}

std::vector<Task> Tiles::tasks() const {
  std::vector<Task> tasks;
  for (int s = 0; s < num_servers(); ++s) {
    std::vector<Tile> tiles = servers_[s].tiles;
    std::sort(tiles.begin(), tiles.end(), [](const Tile& a, const Tile& b) {
      return std::tie(a.document, a.segment_end, a.kv, a.q) <
             std::tie(b.document, b.segment_end, b.kv, b.q);
    });
    for (const Tile& tile : tiles) {
      tasks.push_back({tile.document, tile.q, tile.kv, s, MaskType::kCausal});
    }
  }
  return tasks;
}

}  // namespace distca
