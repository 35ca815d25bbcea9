#include "distca/kernels/cpu/overlaps.h"

#include <algorithm>
#include <numeric>

#include "distca/base/integers.h"

namespace distca::kernels {
namespace {

constexpr int64_t kBytes = element_bytes(ScalarType::kFloat32);

/// Union-find; a group's name is its smallest member.
class Groups {
 public:
  explicit Groups(size_t size) : parent_(size) { std::iota(parent_.begin(), parent_.end(), 0); }
  int64_t find(int64_t i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }
  void join(int64_t a, int64_t b) {
    a = find(a), b = find(b);
    parent_[std::max(a, b)] = std::min(a, b);
  }
  std::vector<int64_t> names() {
    std::vector<int64_t> all(parent_.size());
    for (size_t i = 0; i < all.size(); ++i) all[i] = find(static_cast<int64_t>(i));
    return all;
  }

 private:
  std::vector<int64_t> parent_;
};

/// Rows of memory `stride` bytes apart, `width` wide each: those of all heads, or of one head where
/// the heads lie apart.
struct Piece {
  Range bytes{};
  int64_t stride = 0;
  int64_t width = 0;
  int64_t rows = 0;
  int64_t task = 0;
  // Pieces that agree in these and begin a multiple of the stride apart overlap head on head.
  enum Kind { kQueries, kDk, kDv } kind = kQueries;
  int64_t head = 0;
  int64_t head_stride = 0;
  int64_t position = 0;  // of the first row

  int64_t phase() const { return bytes.begin % stride; }
  int64_t first_row() const { return bytes.begin / stride; }
  bool same_layout(const Piece& other) const {
    return kind == other.kind && head == other.head && head_stride == other.head_stride &&
           width == other.width;
  }
};

class Finder {
 public:
  explicit Finder(size_t tasks) : keys_(tasks), queries_(tasks), families_(tasks) {
    query_token_.resize(tasks);
  }

  void add(const Rows& rows, int64_t tokens, int64_t heads, int64_t dim, Piece piece) {
    if (tokens == 0) return;
    piece.width = ((heads - 1) * rows.head_stride + dim) * kBytes;
    piece.head_stride = heads == 1 ? 0 : rows.head_stride * kBytes;
    piece.stride = rows.token_stride * kBytes;
    piece.rows = tokens;
    int64_t pieces = 1;
    if (piece.width > piece.stride) {
      pieces = heads;
      piece.width = dim * kBytes;
      piece.stride = std::max(piece.stride, piece.width);  // one token may come without a stride
    }
    for (piece.head = 0; piece.head < pieces; ++piece.head) {
      const auto begin = static_cast<int64_t>(reinterpret_cast<uintptr_t>(rows.data)) +
                         piece.head * piece.head_stride;
      piece.bytes = {begin, begin + (tokens - 1) * piece.stride + piece.width};
      if (piece.kind == Piece::kQueries && piece.head == 0) {
        query_token_[piece.task] = piece.first_row();
      }
      pieces_.push_back(piece);
    }
  }

  TaskOverlaps find() {
    const std::span<Piece> all(pieces_);
    for_connected(
        all, [](const Piece& p) { return p.bytes; },
        [this](std::span<Piece> near) { separate(near); });
    TaskOverlaps result{.keys = keys_.names(),
                        .queries = queries_.names(),
                        .families = families_.names(),
                        .strict = std::vector<bool>(query_token_.size()),
                        .query_token = std::move(query_token_)};
    for (const int64_t task : strict_) result.strict[result.families[task]] = true;
    return result;
  }

 private:
  /// Calls visit(pieces) for each set of several that are connected by overlapping ranges.
  template <typename RangeOf, typename Visit>
  static void for_connected(std::span<Piece> pieces, const RangeOf& range_of, const Visit& visit) {
    std::sort(pieces.begin(), pieces.end(), [&](const Piece& a, const Piece& b) {
      return range_of(a).begin < range_of(b).begin;
    });
    for (size_t first = 0; first < pieces.size();) {
      int64_t end = range_of(pieces[first]).end;
      size_t next = first + 1;
      for (; next < pieces.size() && range_of(pieces[next]).begin < end; ++next) {
        end = std::max(end, range_of(pieces[next]).end);
      }
      if (next - first > 1) visit(pieces.subspan(first, next - first));
      first = next;
    }
  }

  /// Pieces whose ranges of memory overlap; their rows may still lie between each other's.
  void separate(std::span<Piece> pieces) {
    const int64_t stride = pieces.front().stride;
    for (const Piece& piece : pieces) {
      if (piece.stride != stride) return join_strictly(pieces);
    }
    std::sort(pieces.begin(), pieces.end(),
              [](const Piece& a, const Piece& b) { return a.phase() < b.phase(); });
    std::vector<std::span<Piece>> columns;
    int64_t free = 0;  // where the widest column so far ends
    for (size_t first = 0; first < pieces.size();) {
      size_t next = first;
      const int64_t phase = pieces[first].phase();
      if (phase < free) return join_strictly(pieces);
      for (; next < pieces.size() && pieces[next].phase() == phase; ++next) {
        free = std::max(free, phase + pieces[next].width);
      }
      columns.push_back(pieces.subspan(first, next - first));
      first = next;
    }
    if (columns.size() > 1 && free - stride > pieces.front().phase()) return join_strictly(pieces);
    for (const std::span<Piece> column : columns) {
      for_connected(
          column,
          [](const Piece& p) {
            return Range{p.first_row(), p.first_row() + p.rows};
          },
          [this](std::span<Piece> rows) { join(rows); });
    }
  }

  /// Pieces that overlap in whole rows of memory.
  void join(std::span<Piece> pieces) {
    const Piece& first = pieces.front();
    for (const Piece& piece : pieces) {
      const bool in_step = piece.kind == Piece::kQueries ||
                           piece.first_row() - piece.position == first.first_row() - first.position;
      if (!in_step || !piece.same_layout(first)) return join_strictly(pieces);
    }
    Groups& groups = first.kind == Piece::kQueries ? queries_ : keys_;
    for (const Piece& piece : pieces) {
      groups.join(first.task, piece.task);
      families_.join(first.task, piece.task);
    }
  }

  void join_strictly(std::span<Piece> pieces) {
    for (const Piece& piece : pieces) families_.join(pieces.front().task, piece.task);
    strict_.push_back(pieces.front().task);
  }

  Groups keys_, queries_, families_;
  std::vector<int64_t> query_token_;
  std::vector<int64_t> strict_;
  std::vector<Piece> pieces_;
};

}  // namespace

TaskOverlaps find_overlaps(const Shape& shape, std::span<const BackwardTask> tasks) {
  Finder finder(tasks.size());
  for (size_t i = 0; i < tasks.size(); ++i) {
    const BackwardTask& task = tasks[i];
    const auto index = static_cast<int64_t>(i);
    finder.add(task.dq, task.q_tokens, shape.num_heads, shape.head_dim_qk,
               {.task = index, .kind = Piece::kQueries});
    for (size_t f = 0; f < task.keys.size(); ++f) {
      const int64_t tokens = task.keys[f].tokens, position = task.keys[f].position;
      const KeyGradient& gradient = task.key_gradients[f];
      finder.add(gradient.dk, tokens, shape.num_kv_heads, shape.head_dim_qk,
                 {.task = index, .kind = Piece::kDk, .position = position});
      finder.add(gradient.dv, tokens, shape.num_kv_heads, shape.head_dim_v,
                 {.task = index, .kind = Piece::kDv, .position = position});
    }
  }
  return finder.find();
}

}  // namespace distca::kernels
