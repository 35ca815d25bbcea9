#pragma once
// The state of one item of the forward pass (forward.h), and what the item reads: the limits of its
// rows, Q, and the key tiles with their copies. Only for sources that are compiled for one
// instruction set.

#include <new>

#include "distca/kernels/cpu/engine.h"
#include "distca/kernels/cpu/fetch.h"
#include "distca/kernels/cpu/pack.h"
#include "distca/kernels/cpu/product.h"

namespace distca::kernels {
namespace {

constexpr float kNoScore = -3.4028234663852886e38F;  // the maximum of no scores; finite
constexpr float kLeastScale = 1e-37F;                // instead of 0, because 0 * infinity is NaN
constexpr int32_t kAbsentKey = 2 * kTileKeys;        // beyond every limit in a key tile

/// Rows of a panel.
template <class Simd>
constexpr int kPanelWidth = Simd::kProductVectors* Simd::kLanes;

/// Positions of the keys that some rows of a panel see, and of those that all its rows see. Both
/// ends are inclusive.
struct PanelKeys {
  int64_t some_low = 0;
  int64_t some_high = 0;
  int64_t all_low = 0;
  int64_t all_high = 0;
};

/// Words between the rows of K and of V, which the compiler knows. Each is an odd number of cache
/// lines, so that a column is spread over all sets of the cache.
template <int kStrideK, int kStrideV>
struct Strides {
  static constexpr int kKey = kStrideK;
  static constexpr int kValue = kStrideV;
};

constexpr int kLongStride = 272;  // holds kMostHeadDim words

/// One item in progress. Arrays by lane are [panels][width of a panel].
template <class Simd>
struct ForwardTile {
  static constexpr int kPanels = kTileRows / kPanelWidth<Simd>;

  int64_t rows = 0;      // rows of the item
  int panels = 0;        // panels that hold them
  int d_words = 0;       // words of a row of Q
  int e = 0;             // head_dim_v
  double scale = 0;      // >= 0; turns a score into an exponent of e
  float scale_log2 = 0;  // > 0; turns a score into an exponent of 2
  float cap = 0;         // softcap. 0 means that scores are not capped.
  float cap_scale = 0;   // softmax_scale / cap

  PanelKeys panel_keys[kPanels];
  bool started[kPanels] = {};  // true if `o` holds something of the panel
  int64_t low[kTileRows];      // the first and the last position that the lane sees
  int64_t high[kTileRows];
  alignas(64) float maximum[kTileRows];
  alignas(64) float sum[kTileRows];
  alignas(64) float lse[kTileRows];
  alignas(64) float factor[kPanelWidth<Simd>];
  alignas(64) float top[kPanelWidth<Simd>];          // the maximum with the current key tile
  alignas(64) int32_t first_key[kPanelWidth<Simd>];  // limits in the current key tile
  alignas(64) int32_t last_key[kPanelWidth<Simd>];
  alignas(64) float scores[kTileKeys * kPanelWidth<Simd>];  // later probabilities, as words

  Word* q = nullptr;   // [panels][d_words][width]
  float* o = nullptr;  // [panels][e][width]
  Word* k = nullptr;   // [kTileKeys][stride]
  Word* v = nullptr;   // [kTileKeys or pairs][stride]
};

/// A key tile: which of its keys exist, and where their rows lie.
struct KeyTile {
  int64_t position = 0;
  uint64_t present = 0;  // bit i: key i exists
  /// Keys whose V is not finite. It is zero in the copy, and add_apart adds it.
  uint64_t not_finite = 0;
  int first = 0;  // all keys that exist are in [first, end)
  int end = 0;
  int32_t index[kTileKeys];  // the key's number in the key tile, or kAbsentKey
  const void* k_rows[kTileKeys];
  const void* v_rows[kTileKeys];
};

/// How many lanes of a panel hold a row.
template <class Simd>
int panel_lanes(const ForwardTile<Simd>& tile, int panel) {
  const int64_t left = tile.rows - int64_t{panel} * kPanelWidth<Simd>;
  return left < kPanelWidth<Simd> ? static_cast<int>(left) : kPanelWidth<Simd>;
}

/// Sets what each lane sees. Lanes without a row see everything, so that they never need a mask.
template <class Simd>
void set_limits(const ForwardItem& item, int64_t group, ForwardTile<Simd>& tile) {
  constexpr int kWidth = kPanelWidth<Simd>;
  const Mask& mask = item.task->mask;
  const auto far = [](int64_t window) {
    return window < 0 || window > kFarPosition ? kFarPosition : window;
  };
  const int64_t left = far(mask.window_left);
  int64_t right = far(mask.window_right);
  if (mask.causal) right = 0;
  for (int i = 0; i < tile.panels * kWidth; ++i) {
    tile.low[i] = -kFarPosition;
    tile.high[i] = kFarPosition;
    tile.maximum[i] = kNoScore;
    tile.sum[i] = 0;
  }
  int64_t position = item.task->q_position + item.row_begin / group;
  int64_t head = item.row_begin % group;
  for (int i = 0; i < tile.rows; ++i) {
    tile.low[i] = position - left;
    tile.high[i] = position + right;
    if (++head == group) head = 0, ++position;
  }
  for (int p = 0; p < tile.panels; ++p) {  // limits ascend with the rows
    const int first = p * kWidth;
    const int last = first + panel_lanes(tile, p) - 1;
    tile.panel_keys[p] = {tile.low[first], tile.high[last], tile.low[last], tile.high[first]};
  }
}

/// Copies Q. A negative scale becomes a change of Q's sign, which is exact.
template <class Simd, class Number>
void pack_queries(const ForwardItem& item, int64_t group, ForwardTile<Simd>& tile) {
  constexpr int kWidth = kPanelWidth<Simd>;
  const void* rows[kTileRows];
  const int count = static_cast<int>(tile.rows);
  const int padded = tile.panels * kWidth;
  query_row_addresses(item.task->q, sizeof(Number), group, item.kv_head, item.row_begin, count,
                      padded, rows);
  fetch_rows(rows, count, item.shape->head_dim_qk * sizeof(Number));
  for (int p = 0; p < tile.panels; ++p) {
    const int width = panel_lanes(tile, p) <= Simd::kLanes ? Simd::kLanes : kWidth;
    pack_transposed<Simd, Number>(rows + p * kWidth, width,
                                  static_cast<int>(item.shape->head_dim_qk),
                                  tile.q + int64_t{p} * tile.d_words * kWidth, width);
  }
  if (item.shape->softmax_scale < 0) {
    const Word sign = Simd::kPairs ? 0x80008000U : 0x80000000U;
    const int64_t words = int64_t{tile.panels} * tile.d_words * kWidth;
    for (int64_t i = 0; i < words; ++i) tile.q[i] ^= sign;
  }
}

/// Finds the key tile that has the first key from `position` on. Returns false if there is none up
/// to `high`.
template <class Number>
bool find_key_tile(const ForwardItem& item, int64_t position, int64_t high, int64_t* hint,
                   KeyTile& key_tile) {
  const KeyFragment* fragments = item.task->keys.data();
  const auto count = static_cast<int64_t>(item.task->keys.size());
  const int64_t key = next_key(fragments, count, *hint, position);
  if (key > high || key >= kFarPosition) return false;
  key_tile.position = key / kTileKeys * kTileKeys;
  KeyPieces pieces;
  find_keys(fragments, count, key_tile.position, hint, &pieces);
  key_tile.present = pieces.present;
  key_tile.first = __builtin_ctzll(key_tile.present);
  key_tile.end = kTileKeys - __builtin_clzll(key_tile.present);
  for (int i = 0; i < kTileKeys; ++i) {
    key_tile.index[i] = (key_tile.present >> i & 1) != 0 ? i : kAbsentKey;
  }
  key_tile_addresses(fragments, pieces, sizeof(Number), item.kv_head, key_tile.k_rows,
                     key_tile.v_rows);
  return true;
}

/// Copies K and V of a key tile. The row of a key whose V is not finite becomes 0.
template <class Simd, class Number, class Strides>
void pack_keys(int d, KeyTile& key_tile, ForwardTile<Simd>& tile) {
  const int count = static_cast<int>(round_up(key_tile.end, Simd::kPairs ? 2 : 1));
  pack_rows<Simd, Number>(key_tile.k_rows, count, d, tile.k, Strides::kKey);
  key_tile.not_finite = 0;
  if (pack_summed_rows<Simd, Number, true>(key_tile.v_rows, count, tile.e, tile.v,
                                           Strides::kValue)) {
    return;
  }
  const void* finite_rows[kTileKeys];
  for (int i = 0; i < count; ++i) {
    const bool finite =
        pack_rows<Simd, Number, true>(key_tile.v_rows + i, 1, tile.e, tile.v, Strides::kValue);
    finite_rows[i] = finite ? key_tile.v_rows[i] : kZeroRow;
    if (!finite) key_tile.not_finite |= uint64_t{1} << i;
  }
  pack_summed_rows<Simd, Number>(finite_rows, count, tile.e, tile.v, Strides::kValue);
}

/// Asks for the rows of the key tile that will be copied next, a few cache lines at a time, between
/// parts of products. Asking for all at once would fill the processor's list of open misses and
/// stall it.
struct Prefetch {
  /// `steps` is how often step() will be called. `key_tile` may be nullptr.
  void start(const KeyTile* key_tile, int64_t k_bytes, int64_t v_bytes, int64_t steps) {
    next = key_tile;
    bytes[0] = k_bytes;
    bytes[1] = v_bytes;
    row = 0;
    at = 0;
    const int64_t lines = kTileKeys * ((k_bytes + 63) / 64 + (v_bytes + 63) / 64);
    lines_each_step = (lines + steps - 1) / steps;
  }
  /// Adds the queries of the next item when only so few of the item's steps are left (`steps`)
  /// that they come a few cache lines at a time. If they came earlier, other memory would drive
  /// them out of the cache again.
  template <class Number>
  void start_queries(const ForwardItem& item, int64_t group, int64_t steps) {
    constexpr int64_t kLinesEachStep = 4;
    if (queries > 0 || steps == 0) return;
    const int64_t rows = item.row_end - item.row_begin;
    query_bytes = item.shape->head_dim_qk * int64_t{sizeof(Number)};
    const int64_t lines = rows * ((query_bytes + 63) / 64);
    query_lines_each_step = (lines + steps - 1) / steps;
    if (query_lines_each_step < kLinesEachStep) return;
    queries = static_cast<int>(rows);
    query_row_addresses(item.task->q, sizeof(Number), group, item.kv_head, item.row_begin, queries,
                        queries, query_rows);
  }
  /// Asks for the next cache lines.
  void step() {
    for (int64_t i = 0; i < query_lines_each_step && query < queries; ++i) {
      __builtin_prefetch(static_cast<const std::byte*>(query_rows[query]) + query_at, 0, 2);
      query_at += 64;
      if (query_at >= query_bytes) query_at = 0, ++query;
    }
    if (next == nullptr) return;
    for (int64_t i = 0; i < lines_each_step && row < 2 * kTileKeys; ++i) {
      const bool value = row >= kTileKeys;
      const void* data = value ? next->v_rows[row - kTileKeys] : next->k_rows[row];
      __builtin_prefetch(static_cast<const std::byte*>(data) + at, 0, 2);
      at += 64;
      if (at >= bytes[value]) at = 0, ++row;
    }
  }
  const KeyTile* next = nullptr;
  int64_t bytes[2] = {};  // bytes of a row of K and of V
  int row = 0;            // next of 2 x kTileKeys rows; those of K come first
  int64_t at = 0;         // bytes from the start of the row
  int64_t lines_each_step = 0;

  int queries = 0;  // rows of Q of the next item, 0 until start_queries() adds them
  int query = 0;
  int64_t query_at = 0;
  int64_t query_bytes = 0;
  int64_t query_lines_each_step = 0;
  const void* query_rows[kTileRows];
};

/// `here` is how many panels see keys of the key tile at `position`. `all` is how many pairs of a
/// panel and a key tile, from there up to `end`, have keys that the panel sees.
struct PanelsLeft {
  int64_t here = 0;
  int64_t all = 0;
};
template <class Simd>
PanelsLeft panels_left(const ForwardTile<Simd>& tile, int64_t position, int64_t end) {
  PanelsLeft left;
  for (int p = 0; p < tile.panels; ++p) {
    const PanelKeys& keys = tile.panel_keys[p];
    const int64_t low = keys.some_low < position ? position : keys.some_low;
    const int64_t high = keys.some_high < end ? keys.some_high : end - 1;
    if (low > high) continue;
    left.here += low < position + kTileKeys ? 1 : 0;
    left.all += high / kTileKeys - low / kTileKeys + 1;
  }
  return left;
}

/// The product of product.h with `rows` rows of C, one step at a time. After each step, the last
/// one included, the prefetch makes a step.
template <class Simd, int kVectors, int kStrideM, int kStrideK, int kStrideC, Start kStart,
          bool kTop = false>
void product_in_steps(int rows, const Word* a, const Word* b, int b_stride, float* c, int words,
                      const float* factor, Prefetch& prefetch, float* top = nullptr) {
  constexpr int kPart = Simd::kProductRows;
  for (int m = 0; m < rows; m += kPart) {
    product<Simd, kVectors, kStrideM, kStrideK, kStrideC, kStart, kTop>(
        rows - m < kPart ? rows - m : kPart, a + m * kStrideM, b, b_stride, c + m * kStrideC, words,
        factor, NoStep{}, top);
    prefetch.step();
  }
}

}  // namespace
}  // namespace distca::kernels
