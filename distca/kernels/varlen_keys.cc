#include "distca/kernels/varlen_keys.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>

#include "distca/base/error.h"
#include "distca/kernels/rows.h"

namespace distca::kernels {
namespace {

constexpr int64_t kUnlimited = int64_t{1} << 60;  // sums of a few of them do not overflow
constexpr int64_t kMostRows = std::numeric_limits<int32_t>::max();
constexpr int64_t kAlignment = 16;  // bytes that FlashAttention loads at once

// --- cutting -------------------------------------------------------------------------------------

Range all_keys(const VarlenTask& task) {
  if (task.keys.empty()) return {};
  return {task.keys.front().position, task.keys.back().position + task.keys.back().tokens};
}

/// Query i sees keys [i - left, i + right].
void cut_task(size_t index, const VarlenTask& task, std::vector<VarlenPart>& parts) {
  DISTCA_CHECK(keys_are_consecutive(task.keys), "task {}: a gap between its keys", index);
  const Mask& mask = task.mask;
  const int64_t left = mask.window_left < 0 ? kUnlimited : std::min(mask.window_left, kUnlimited);
  int64_t right = mask.window_right < 0 ? kUnlimited : std::min(mask.window_right, kUnlimited);
  if (mask.causal) right = 0;
  const Range keys = all_keys(task);
  if (keys.empty()) return;
  const Range queries = intersect(task.queries, {keys.begin - right, keys.end + left});
  if (queries.empty()) return;
  // Queries from here on see all keys to the end; the one before it, exactly to the end.
  const int64_t all = std::clamp(keys.end - right, queries.begin, queries.end);
  const auto add = [&](const Range& part, bool right_limited) {
    if (part.empty()) return;
    const Range seen = intersect(keys, {part.begin - left, part.end + right});
    int64_t window = -1;
    if (mask.window_left >= 0 && right_limited) window = left + right;
    if (!right_limited && part.end - 1 - left > seen.begin) window = left + seen.end - part.end;
    parts.push_back({.task = index,
                     .queries = part,
                     .keys = seen,
                     .right_limited = right_limited,
                     .window_left = std::min(window, kMostRows),
                     .first_key = keys.begin});
  };
  add({queries.begin, all}, /*right_limited=*/true);
  add({all, queries.end}, /*right_limited=*/false);
}

// --- where keys lie ------------------------------------------------------------------------------

int64_t address(const void* data) { return static_cast<int64_t>(reinterpret_cast<intptr_t>(data)); }

/// Rows of one memory, by where the document's position 0 is or would be.
struct Line {
  int64_t origin = 0;        // address
  int64_t token_stride = 0;  // bytes
  int64_t head_stride = 0;   // bytes
  auto operator<=>(const Line&) const = default;
};

Line line_of(const Rows& rows, ScalarType type, int64_t position) {
  const int64_t bytes = element_bytes(type);
  return {address(rows.data) - position * rows.token_stride * bytes, rows.token_stride * bytes,
          rows.head_stride * bytes};
}

struct Place {
  Line k, v;
  auto operator<=>(const Place&) const = default;
};

struct PlacedKeys {
  Place place;
  Range keys;         // positions
  KeyFragment first;  // the rows of keys.begin
};

Rows moved(Rows rows, ScalarType type, int64_t tokens) { return shifted(rows, type, tokens, 0); }

/// Some of the task's keys, in as few pieces as their memory allows.
std::vector<PlacedKeys> placed_keys(ScalarType type, const VarlenTask& task, const Range& keys) {
  std::vector<PlacedKeys> pieces;
  for (const KeyFragment& fragment : task.keys) {
    const Range part = intersect(keys, {fragment.position, fragment.position + fragment.tokens});
    if (part.empty()) continue;
    const Place place{line_of(fragment.k, type, fragment.position),
                      line_of(fragment.v, type, fragment.position)};
    if (!pieces.empty() && pieces.back().place == place) {
      pieces.back().keys.end = part.end;
      continue;
    }
    const int64_t skip = part.begin - fragment.position;
    pieces.push_back({place,
                      part,
                      {.k = moved(fragment.k, type, skip),
                       .v = moved(fragment.v, type, skip),
                       .position = part.begin}});
  }
  return pieces;
}

bool aligned(const Line& line) {
  return line.origin % kAlignment == 0 && line.token_stride % kAlignment == 0 &&
         line.head_stride % kAlignment == 0;
}

// --- keys read in place --------------------------------------------------------------------------

struct InPlace {
  size_t part;
  PlacedKeys keys;
  int64_t address() const {
    return keys.place.k.origin + keys.keys.begin * keys.place.k.token_stride;
  }
};

/// A buffer under way, with the place of its row 0 as if that were position 0.
struct OpenBuffer {
  KeyBuffer buffer;
  Place place;
  size_t first_part;

  /// The row of the keys' first, if they are rows of this buffer.
  std::optional<int64_t> row(const PlacedKeys& keys) const {
    const auto rows = [&](const Line& mine, const Line& its) -> std::optional<int64_t> {
      if (mine.token_stride != its.token_stride || mine.head_stride != its.head_stride) return {};
      const int64_t bytes = its.origin + keys.keys.begin * its.token_stride - mine.origin;
      if (bytes == 0) return 0;  // a lone key may have no stride
      if (its.token_stride == 0 || bytes % its.token_stride != 0) return {};
      return bytes / its.token_stride;
    };
    const std::optional<int64_t> k = rows(place.k, keys.place.k), v = rows(place.v, keys.place.v);
    return k == v ? k : std::nullopt;
  }
};

std::vector<OpenBuffer> share_memory(std::vector<InPlace> keys, std::vector<VarlenPart>& parts,
                                     bool over_gaps) {
  std::stable_sort(keys.begin(), keys.end(),
                   [](const InPlace& a, const InPlace& b) { return a.address() < b.address(); });
  std::vector<OpenBuffer> buffers;
  for (const InPlace& one : keys) {
    const int64_t tokens = one.keys.keys.size();
    VarlenPart& part = parts[one.part];
    const auto fits = [&](const OpenBuffer& open) {
      const std::optional<int64_t> row = open.row(one.keys);
      return row && *row >= 0 && *row <= (over_gaps ? kMostRows - tokens : open.buffer.rows);
    };
    auto open = std::find_if(buffers.begin(), buffers.end(), fits);
    if (open == buffers.end()) {
      Place place = one.keys.place;
      place.k.origin += one.keys.keys.begin * place.k.token_stride;
      place.v.origin += one.keys.keys.begin * place.v.token_stride;
      buffers.push_back({{.k = one.keys.first.k, .v = one.keys.first.v}, place, one.part});
      open = std::prev(buffers.end());
    }
    part.row = *open->row(one.keys);
    part.buffer = open - buffers.begin();
    open->buffer.rows = std::max(open->buffer.rows, part.row + tokens);
    open->first_part = std::min(open->first_part, one.part);
  }
  return buffers;
}

// --- keys gathered -------------------------------------------------------------------------------

struct Gathered {
  size_t part;
  std::vector<PlacedKeys> pieces;
};

/// Pieces in ascending order of positions, each key once; none if one position is in two places.
std::optional<std::vector<PlacedKeys>> joined(std::vector<PlacedKeys> pieces) {
  std::stable_sort(pieces.begin(), pieces.end(), [](const PlacedKeys& a, const PlacedKeys& b) {
    return a.keys.begin < b.keys.begin;
  });
  std::vector<PlacedKeys> all;
  for (const PlacedKeys& piece : pieces) {
    if (all.empty() || all.back().keys.end < piece.keys.begin ||
        (all.back().keys.end == piece.keys.begin && all.back().place != piece.place)) {
      all.push_back(piece);
    } else if (all.back().place == piece.place) {
      all.back().keys.end = std::max(all.back().keys.end, piece.keys.end);
    } else {
      return std::nullopt;
    }
  }
  return all;
}

/// Appends the pieces to the buffer and sets the row of those parts whose keys they are.
void gather(const std::vector<PlacedKeys>& pieces, std::span<const Gathered* const> of,
            std::vector<VarlenPart>& parts, KeyBuffer& buffer) {
  const size_t first_copy = buffer.copies.size();
  for (const PlacedKeys& piece : pieces) {
    buffer.copies.push_back({piece.first.k, piece.first.v, piece.keys.size(), buffer.rows});
    buffer.rows += piece.keys.size();
  }
  for (const Gathered* one : of) {
    VarlenPart& part = parts[one->part];
    const auto piece = std::find_if(pieces.begin(), pieces.end(), [&](const PlacedKeys& p) {
      return p.keys.begin <= part.keys.begin && part.keys.begin < p.keys.end;
    });
    const KeyCopy& copy = buffer.copies[first_copy + (piece - pieces.begin())];
    part.row = copy.row + part.keys.begin - piece->keys.begin;
  }
}

/// Parts that have keys in common, directly or by way of others, are one document's.
std::vector<std::vector<const Gathered*>> documents(const std::vector<Gathered>& all) {
  std::vector<size_t> parent(all.size());
  std::iota(parent.begin(), parent.end(), size_t{0});
  const auto root = [&](size_t i) {
    while (parent[i] != i) i = parent[i] = parent[parent[i]];
    return i;
  };
  std::vector<std::tuple<Place, Range, size_t>> reads;
  for (size_t i = 0; i < all.size(); ++i) {
    for (const PlacedKeys& piece : all[i].pieces) reads.emplace_back(piece.place, piece.keys, i);
  }
  std::sort(reads.begin(), reads.end());
  int64_t end = 0;  // of the keys read so far in a row
  for (size_t i = 0; i < reads.size(); ++i) {
    const auto& [place, keys, reader] = reads[i];
    if (i > 0 && place == std::get<Place>(reads[i - 1]) && keys.begin < end) {
      const auto [low, high] = std::minmax({root(reader), root(std::get<size_t>(reads[i - 1]))});
      parent[high] = low;
      end = std::max(end, keys.end);
    } else {
      end = keys.end;
    }
  }
  std::map<size_t, std::vector<const Gathered*>> by_root;  // a root is its document's first part
  for (size_t i = 0; i < all.size(); ++i) by_root[root(i)].push_back(&all[i]);
  std::vector<std::vector<const Gathered*>> result;
  for (auto& [first, members] : by_root) result.push_back(std::move(members));
  return result;
}

KeyBuffer gather_all(const std::vector<Gathered>& all, std::vector<VarlenPart>& parts) {
  KeyBuffer buffer;
  for (const std::vector<const Gathered*>& document : documents(all)) {
    std::vector<PlacedKeys> pieces;
    for (const Gathered* part : document) {
      pieces.insert(pieces.end(), part->pieces.begin(), part->pieces.end());
    }
    if (const auto whole = joined(std::move(pieces))) {
      gather(*whole, document, parts, buffer);
    } else {
      for (const Gathered* part : document) gather(part->pieces, {&part, 1}, parts, buffer);
    }
  }
  return buffer;
}

}  // namespace

bool keys_are_consecutive(std::span<const KeyFragment> keys) {
  for (size_t i = 1; i < keys.size(); ++i) {
    if (keys[i].position != keys[i - 1].position + keys[i - 1].tokens) return false;
  }
  return true;
}

std::vector<VarlenPart> cut_tasks(std::span<const VarlenTask> tasks) {
  std::vector<VarlenPart> parts;
  for (size_t i = 0; i < tasks.size(); ++i) cut_task(i, tasks[i], parts);
  return parts;
}

std::vector<KeyBuffer> place_keys(ScalarType type, std::span<const VarlenTask> tasks,
                                  std::vector<VarlenPart>& parts, bool over_gaps) {
  std::vector<InPlace> in_place;
  std::vector<Gathered> gathered;
  for (size_t i = 0; i < parts.size(); ++i) {
    std::vector<PlacedKeys> pieces = placed_keys(type, tasks[parts[i].task], parts[i].keys);
    if (pieces.size() == 1 && aligned(pieces[0].place.k) && aligned(pieces[0].place.v)) {
      in_place.push_back({i, pieces[0]});
    } else {
      gathered.push_back({i, std::move(pieces)});
    }
  }
  std::vector<OpenBuffer> open = share_memory(in_place, parts, over_gaps);
  std::vector<size_t> order(open.size()), number(open.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return open[a].first_part < open[b].first_part; });
  std::vector<KeyBuffer> buffers;
  for (const size_t i : order) {
    number[i] = buffers.size();
    buffers.push_back(open[i].buffer);
  }
  for (const InPlace& one : in_place) parts[one.part].buffer = number[parts[one.part].buffer];
  if (!gathered.empty()) {
    for (const Gathered& one : gathered) parts[one.part].buffer = buffers.size();
    buffers.push_back(gather_all(gathered, parts));
  }
  return buffers;
}

bool GradientRun::operator==(const GradientRun& other) const {
  const auto same = [](const Rows& a, const Rows& b) {
    return a.data == b.data && a.token_stride == b.token_stride && a.head_stride == b.head_stride;
  };
  return keys == other.keys && same(to.dk, other.to.dk) && same(to.dv, other.to.dv);
}

std::vector<GradientRun> key_gradients(ScalarType type, const VarlenTask& task, const Range& keys) {
  const ScalarType sum_type = accumulator_type(type);
  std::vector<GradientRun> runs;
  std::optional<Place> last;
  for (size_t i = 0; i < task.keys.size(); ++i) {
    const KeyFragment& fragment = task.keys[i];
    const KeyGradient& gradient = task.gradients[i];
    const Range part = intersect(keys, {fragment.position, fragment.position + fragment.tokens});
    if (part.empty()) continue;
    const Place place{line_of(gradient.dk, sum_type, fragment.position),
                      line_of(gradient.dv, sum_type, fragment.position)};
    if (last == place) {
      runs.back().keys.end = part.end;
      continue;
    }
    last = place;
    const int64_t skip = part.begin - fragment.position;
    runs.push_back(
        {{moved(gradient.dk, sum_type, skip), moved(gradient.dv, sum_type, skip)}, part});
  }
  return runs;
}

}  // namespace distca::kernels
