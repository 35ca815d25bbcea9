#pragma once
// Forward of one item (engine.h): a tile of rows against all keys that they see, block by block.
//
// Everything is transposed. Lanes are rows of the tile, a panel of them at a time:
//   S [keys][panel] = K Q^T;  P = 2^((S - max) * scale);  O [head_dim_v][panel] = O * factor + V^T
//   P
// so the maximum and the sum run down the lanes, a mask is two limits a lane, and the broadcast
// operands K and V are what all panels of the tile share: each block of them is copied once.
//
// A row's bits depend on the row and on its keys only. Blocks are aligned to the document's start;
// a block, or a part of one, that a row does not see leaves the row as it is: its probabilities are
// 0, its factor is 2^0 = 1, and a sum to which 0 is added keeps its bits but for the sign of zero,
// which the end removes. V that is not finite is added apart, since 0 * infinity is not 0.

#include <new>

#include "distca/kernels/cpu/engine.h"
#include "distca/kernels/cpu/exponential.h"
#include "distca/kernels/cpu/pack.h"
#include "distca/kernels/cpu/product.h"

namespace distca::kernels {
namespace {

constexpr float kNoScore = -3.4028234663852886e38F;  // the maximum of no scores; finite
constexpr float kLeastScale = 1e-37F;                // instead of 0, since 0 * infinity is NaN
constexpr int64_t kFarPosition = int64_t{1} << 61;   // beyond every position, sums do not overflow
constexpr int32_t kAbsentKey = 2 * kBlockKeys;       // beyond every limit in a block

template <class Simd>
constexpr int kPanelWidth = Simd::kProductVectors* Simd::kLanes;

/// Positions of the keys that some and that all rows of a panel see, both inclusive.
struct PanelKeys {
  int64_t some_low = 0;
  int64_t some_high = 0;
  int64_t all_low = 0;
  int64_t all_high = 0;
};

/// Words between the rows of K and V, known at compile time: an odd number of cache lines, which
/// spreads a column over all sets of the cache.
template <int kStrideK, int kStrideV>
struct Strides {
  static constexpr int kKey = kStrideK;
  static constexpr int kValue = kStrideV;
};

constexpr int kLongStride = 272;  // holds kMostHeadDim words

/// One item in progress. Arrays by lane: [panels][width of a panel].
template <class Simd>
struct ForwardTile {
  static constexpr int kPanels = kTileRows / kPanelWidth<Simd>;

  int64_t rows = 0;
  int panels = 0;
  int d_words = 0;
  int e = 0;
  float scale_log2 = 0;  // > 0; of a score as an exponent of 2
  float cap = 0;         // 0: none
  float cap_scale = 0;   // softmax_scale / cap

  PanelKeys panel_keys[kPanels];
  bool started[kPanels] = {};
  int64_t low[kTileRows];  // the lane's first and last visible position
  int64_t high[kTileRows];
  alignas(64) float maximum[kTileRows];
  alignas(64) float sum[kTileRows];
  alignas(64) float lse[kTileRows];
  alignas(64) float factor[kPanelWidth<Simd>];
  alignas(64) float top[kPanelWidth<Simd>];          // the maximum with the current block
  alignas(64) int32_t first_key[kPanelWidth<Simd>];  // limits in the current block
  alignas(64) int32_t last_key[kPanelWidth<Simd>];
  alignas(64) float scores[kBlockKeys * kPanelWidth<Simd>];  // then probabilities, as words

  Word* q = nullptr;   // [panels][d_words][width]
  float* o = nullptr;  // [panels][e][width]
  Word* k = nullptr;   // [kBlockKeys][stride]
  Word* v = nullptr;   // [kBlockKeys or pairs][stride]
};

/// A block of keys.
struct KeyBlock {
  int64_t position = 0;
  uint64_t present = 0;
  uint64_t not_finite = 0;  // keys whose V is not: zero in the copy, added by add_apart
  int first = 0;            // keys [first, end) hold all that are present
  int end = 0;
  int32_t index[kBlockKeys];  // in the block, or kAbsentKey
  const void* k_rows[kBlockKeys];
  const void* v_rows[kBlockKeys];
};

constexpr int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

template <class Simd>
int panel_lanes(const ForwardTile<Simd>& tile, int panel) {
  const int64_t left = tile.rows - int64_t{panel} * kPanelWidth<Simd>;
  return left < kPanelWidth<Simd> ? static_cast<int>(left) : kPanelWidth<Simd>;
}

/// What each lane sees. Lanes without a row see everything, so that they never ask for a mask.
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

inline void prefetch_row(const void* row, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 64) {
    __builtin_prefetch(static_cast<const std::byte*>(row) + at);
  }
}

/// A negative scale is Q with the other sign, which is exact.
template <class Simd, class Number>
void pack_queries(const ForwardItem& item, int64_t group, ForwardTile<Simd>& tile) {
  constexpr int kWidth = kPanelWidth<Simd>;
  const void* rows[kTileRows];
  const int count = static_cast<int>(tile.rows);
  const int padded = tile.panels * kWidth;
  query_row_addresses(item.task->q, sizeof(Number), group, item.kv_head, item.row_begin, count,
                      padded, rows);
  const int64_t bytes = item.shape->head_dim_qk * int64_t{sizeof(Number)};
  for (int i = 0; i < count; ++i) prefetch_row(rows[i], bytes);
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

/// The first position >= `from` that has a key, or kFarPosition.
inline int64_t next_key(const KeyFragment* fragments, int64_t count, int64_t hint, int64_t from) {
  int64_t next = kFarPosition;
  for (int64_t i = 0, at = hint; i < count; ++i) {
    const KeyFragment& fragment = fragments[at];
    if (fragment.tokens > 0 && fragment.position + fragment.tokens > from) {
      if (fragment.position <= from) return from;
      if (fragment.position < next) next = fragment.position;
    }
    if (++at == count) at = 0;
  }
  return next;
}

/// The block that holds the first key from `position` on; false if there is none up to `high`.
template <class Number>
bool find_block(const ForwardItem& item, int64_t position, int64_t high, int64_t* hint,
                KeyBlock& block) {
  const KeyFragment* fragments = item.task->keys.data();
  const auto count = static_cast<int64_t>(item.task->keys.size());
  const int64_t key = next_key(fragments, count, *hint, position);
  if (key > high || key >= kFarPosition) return false;
  block.position = key / kBlockKeys * kBlockKeys;
  KeyPieces pieces;
  find_keys(fragments, count, block.position, hint, &pieces);
  block.present = pieces.present;
  block.first = __builtin_ctzll(block.present);
  block.end = kBlockKeys - __builtin_clzll(block.present);
  for (int i = 0; i < kBlockKeys; ++i) {
    block.index[i] = (block.present >> i & 1) != 0 ? i : kAbsentKey;
  }
  key_block_addresses(fragments, pieces, sizeof(Number), item.kv_head, block.k_rows, block.v_rows);
  return true;
}

/// Copies the block's K and V. Where V is not finite the key's row is 0 in the copy.
template <class Simd, class Number, class Strides>
void pack_keys(int d, KeyBlock& block, ForwardTile<Simd>& tile) {
  const int count = static_cast<int>(round_up(block.end, Simd::kPairs ? 2 : 1));
  pack_rows<Simd, Number>(block.k_rows, count, d, tile.k, Strides::kKey);
  block.not_finite = 0;
  if (pack_summed_rows<Simd, Number, true>(block.v_rows, count, tile.e, tile.v, Strides::kValue)) {
    return;
  }
  const void* finite_rows[kBlockKeys];
  for (int i = 0; i < count; ++i) {
    const bool finite =
        pack_rows<Simd, Number, true>(block.v_rows + i, 1, tile.e, tile.v, Strides::kValue);
    finite_rows[i] = finite ? block.v_rows[i] : kZeroRow;
    if (!finite) block.not_finite |= uint64_t{1} << i;
  }
  pack_summed_rows<Simd, Number>(finite_rows, count, tile.e, tile.v, Strides::kValue);
}

/// Asks for the rows of the block that is copied next, a few cache lines at a time between parts of
/// products: all at once would fill the processor's list of open misses and stall it.
struct Prefetch {
  /// `steps`: how often step() will be called.
  void start(const KeyBlock* block, int64_t k_bytes, int64_t v_bytes, int steps) {
    next = block;
    bytes[0] = k_bytes;
    bytes[1] = v_bytes;
    row = 0;
    at = 0;
    const int64_t lines = kBlockKeys * ((k_bytes + 63) / 64 + (v_bytes + 63) / 64);
    lines_each_step = (lines + steps - 1) / steps;
  }
  void step() {
    if (next == nullptr) return;
    for (int64_t i = 0; i < lines_each_step && row < 2 * kBlockKeys; ++i) {
      const bool value = row >= kBlockKeys;
      const void* data = value ? next->v_rows[row - kBlockKeys] : next->k_rows[row];
      __builtin_prefetch(static_cast<const std::byte*>(data) + at, 0, 2);
      at += 64;
      if (at >= bytes[value]) at = 0, ++row;
    }
  }
  const KeyBlock* next = nullptr;
  int64_t bytes[2] = {};  // of a row of K, of V
  int row = 0;            // of 2 x kBlockKeys, first those of K
  int64_t at = 0;         // in the row, in bytes
  int64_t lines_each_step = 0;
};

/// C of `rows` rows in parts of one block of the product, with a step of the prefetch after each,
/// the last one too.
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

/// s = cap * tanh(score * softmax_scale / cap), in place.
template <class Simd>
void cap_scores(const ForwardTile<Simd>& tile, float* scores, int numbers) {
  const auto scale = Simd::set(tile.cap_scale);
  const auto cap = Simd::set(tile.cap);
  for (int i = 0; i < numbers; i += Simd::kLanes) {
    const auto x = Simd::multiply(Simd::load(scores + i), scale);
    Simd::store(scores + i, Simd::multiply(cap, tanh<Simd>(x)));
  }
}

/// The panel's limits within the block, as one number a lane.
/// Inlined always: at -O1 GCC 12 drops the call, taking what it writes for unread.
template <class Simd>
inline __attribute__((always_inline)) void set_block_limits(ForwardTile<Simd>& tile, int panel,
                                                            int64_t position) {
  const int64_t* low = tile.low + panel * kPanelWidth<Simd>;
  const int64_t* high = tile.high + panel * kPanelWidth<Simd>;
  for (int i = 0; i < kPanelWidth<Simd>; ++i) {
    const int64_t first = low[i] - position;
    const int64_t last = high[i] - position;
    tile.first_key[i] = static_cast<int32_t>(first < 0 ? 0 : first > 64 ? 64 : first);
    tile.last_key[i] = static_cast<int32_t>(last < -1 ? -1 : last > 64 ? 64 : last);
  }
}

/// Scores that a lane does not see become -infinity: probability 0, whatever the maximum.
template <class Simd, int kVectors>
void mask_scores(ForwardTile<Simd>& tile, const KeyBlock& block, int panel, int first, int end) {
  constexpr int kLanes = Simd::kLanes;
  set_block_limits(tile, panel, block.position);
  const PanelKeys& keys = tile.panel_keys[panel];
  const auto hidden = Simd::set(-__builtin_inff());
  typename Simd::Integers low[kVectors];
  typename Simd::Integers high[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    low[v] = Simd::load_integers(tile.first_key + v * kLanes);
    high[v] = Simd::load_integers(tile.last_key + v * kLanes);
  }
  for (int j = first; j < end; ++j) {
    const bool all = keys.all_low <= block.position + j && block.position + j <= keys.all_high;
    if (all && block.index[j] == j) continue;
    const auto key = Simd::set_integer(block.index[j]);
    float* scores = tile.scores + (j - first) * kVectors * kLanes;
    for (int v = 0; v < kVectors; ++v) {
      const auto visible = Simd::both(Simd::at_most(low[v], key), Simd::at_most(key, high[v]));
      Simd::store(scores + v * kLanes,
                  Simd::select(visible, Simd::load(scores + v * kLanes), hidden));
    }
  }
}

/// Keys [j, j + kKeys): scores become probabilities, as words, and are added to `part`.
template <class Simd, int kVectors, int kKeys>
inline __attribute__((always_inline)) void exponentials(float* scores, int j,
                                                        typename Simd::Vector scale,
                                                        const typename Simd::Vector* exponent,
                                                        typename Simd::Vector* part) {
  using Vector = typename Simd::Vector;
  constexpr int kLanes = Simd::kLanes;
  constexpr int kWidth = kVectors * kLanes;
  Vector p[kKeys * kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kKeys * kVectors; ++i) {
    const Vector score = Simd::load(scores + j * kWidth + i * kLanes);
    p[i] = Simd::multiply_add(score, scale, exponent[i % kVectors]);
  }
  exp2_all<Simd, Simd::kPairs>(p);
#pragma GCC unroll 16
  for (int i = 0; i < kKeys * kVectors; ++i) {
    part[i % kVectors] = Simd::add(part[i % kVectors], p[i]);
  }
  if constexpr (Simd::kPairs) {
#pragma GCC unroll 16
    for (int i = 0; i < kKeys / 2 * kVectors; ++i) {
      const int first = i / kVectors * 2 * kVectors + i % kVectors;
      Simd::store(scores + j / 2 * kWidth + i * kLanes, Simd::pair(p[first], p[first + kVectors]));
    }
  } else {
#pragma GCC unroll 16
    for (int i = 0; i < kKeys * kVectors; ++i) {
      Simd::store(scores + j * kWidth + i * kLanes, p[i]);
    }
  }
}

/// The running maximum as an exponent of 2, rounded: what scores are measured from, in a row's
/// probabilities, its factors and its LSE alike, so that its rounding cancels.
template <class Simd>
inline typename Simd::Vector base_exponent(typename Simd::Vector maximum,
                                           typename Simd::Vector scale) {
  return Simd::max(Simd::set(kNoScore), Simd::multiply(maximum, scale));
}

/// The panel's running maximum with the scores of `keys` keys, into `tile.top`.
template <class Simd, int kVectors>
void find_top(ForwardTile<Simd>& tile, int panel, int keys) {
  using Vector = typename Simd::Vector;
  constexpr int kLanes = Simd::kLanes;
  constexpr int kWidth = kVectors * kLanes;
  const float* scores = tile.scores;
  const float* maximum = tile.maximum + panel * kPanelWidth<Simd>;
  // Several maxima, so that they do not wait for each other.
  constexpr int kChains = 4;
  Vector chain[kChains * kVectors];
  for (int i = 0; i < kChains * kVectors; ++i) {
    chain[i] = Simd::load(maximum + i % kVectors * kLanes);
  }
  int j = 0;
  for (; j + kChains <= keys; j += kChains) {
#pragma GCC unroll 16
    for (int i = 0; i < kChains * kVectors; ++i) {
      chain[i] = Simd::max(Simd::load(scores + j * kWidth + i * kLanes), chain[i]);
    }
  }
  for (; j < keys; ++j) {
    for (int v = 0; v < kVectors; ++v) {
      chain[v] = Simd::max(Simd::load(scores + j * kWidth + v * kLanes), chain[v]);
    }
  }
  Vector top[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    top[v] = chain[v];
    for (int i = 1; i < kChains; ++i) top[v] = Simd::max(chain[i * kVectors + v], top[v]);
  }
  for (int v = 0; v < kVectors; ++v) Simd::store(tile.top + v * kLanes, top[v]);
}

/// Scores of `keys` keys become probabilities under the new maximum `tile.top`, in place; maximum
/// and sum go on, and `factor` is what earlier sums have to be multiplied by. Returns whether any
/// maximum moved; where none did, all factors are 1.
template <class Simd, int kVectors>
bool softmax_block(ForwardTile<Simd>& tile, int panel, int keys) {
  using Vector = typename Simd::Vector;
  constexpr int kLanes = Simd::kLanes;
  constexpr int kWidth = kVectors * kLanes;
  constexpr int kGrain = Simd::kPairs ? 2 : 1;
  constexpr int kStepKeys = 2;
  float* scores = tile.scores;
  float* maximum = tile.maximum + panel * kPanelWidth<Simd>;
  float* sum = tile.sum + panel * kPanelWidth<Simd>;
  const Vector scale = Simd::set(tile.scale_log2);
  Vector top[kVectors];
  for (int v = 0; v < kVectors; ++v) top[v] = Simd::load(tile.top + v * kLanes);
  bool moved = false;
  Vector exponent[kVectors];
  Vector part[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    const Vector before = Simd::load(maximum + v * kLanes);
    const Vector base = base_exponent<Simd>(top[v], scale);
    moved = moved || Simd::any(Simd::below(before, top[v]));
    Simd::store(maximum + v * kLanes, top[v]);
    Simd::store(tile.factor + v * kLanes,
                exp2<Simd, false>(Simd::subtract(base_exponent<Simd>(before, scale), base)));
    exponent[v] = Simd::subtract(Simd::zero(), base);
    part[v] = Simd::zero();
  }
  int j = 0;
  for (; j + kStepKeys <= keys; j += kStepKeys) {
    exponentials<Simd, kVectors, kStepKeys>(scores, j, scale, exponent, part);
  }
  for (; j < keys; j += kGrain) {
    exponentials<Simd, kVectors, kGrain>(scores, j, scale, exponent, part);
  }
  for (int v = 0; v < kVectors; ++v) {
    const Vector factor = Simd::load(tile.factor + v * kLanes);
    const Vector before = Simd::load(sum + v * kLanes);
    Simd::store(sum + v * kLanes, Simd::multiply_add(before, factor, part[v]));
  }
  return moved;
}

/// Adds p * V of the keys whose V is not finite, to the rows that see them.
template <class Simd, class Number, int kVectors>
void add_apart(ForwardTile<Simd>& tile, const KeyBlock& block, int panel, int first, int end) {
  constexpr int kWidth = kVectors * Simd::kLanes;
  const auto* words = reinterpret_cast<const Word*>(tile.scores);
  float* o = tile.o + int64_t{panel} * tile.e * kPanelWidth<Simd>;
  const int lanes = panel_lanes(tile, panel);
  for (int j = first; j < end; ++j) {
    if ((block.not_finite >> j & 1) == 0) continue;
    for (int lane = 0; lane < lanes; ++lane) {
      const int64_t position = block.position + j;
      const int row = panel * kPanelWidth<Simd> + lane;
      if (position < tile.low[row] || position > tile.high[row]) continue;
      Word p = 0;
      if constexpr (Simd::kPairs) {
        const Word pair = words[(j - first) / 2 * kWidth + lane];
        p = (j - first) % 2 == 0 ? pair << 16 : pair & 0xFFFF0000U;
      } else {
        p = words[(j - first) * kWidth + lane];
      }
      for (int i = 0; i < tile.e; ++i) {
        float value = 0;
        if constexpr (sizeof(Number) == sizeof(float)) {
          value = static_cast<const float*>(block.v_rows[j])[i];
        } else {
          value = __builtin_bit_cast(float,
                                     Word{static_cast<const uint16_t*>(block.v_rows[j])[i]} << 16);
        }
        o[i * kWidth + lane] += __builtin_bit_cast(float, p) * value;
      }
    }
  }
}

/// One panel against one block.
template <class Simd, class Number, class Strides, int kVectors>
void attend(ForwardTile<Simd>& tile, const KeyBlock& block, int panel, Prefetch& prefetch) {
  constexpr int kWidth = kVectors * Simd::kLanes;
  constexpr int kGrain = Simd::kPairs ? 2 : 1;
  const PanelKeys& keys = tile.panel_keys[panel];
  int64_t low = keys.some_low - block.position;
  int64_t high = keys.some_high - block.position + 1;
  if (low < block.first) low = block.first;
  if (high > block.end) high = block.end;
  if (low >= high) return;
  const int first = static_cast<int>(low / kGrain * kGrain);
  const int end = static_cast<int>(round_up(high, kGrain));
  const uint64_t needed = first_bits(end) & ~first_bits(first);
  const bool masked = keys.all_low > block.position + first ||
                      keys.all_high < block.position + end - 1 ||
                      (block.present & needed) != needed;

  float* scores = tile.scores;
  const Word* k = tile.k + first * Strides::kKey;
  const Word* q = tile.q + int64_t{panel} * tile.d_words * kPanelWidth<Simd>;
  if (masked || tile.cap > 0) {
    product_in_steps<Simd, kVectors, Strides::kKey, 1, kWidth, Start::kZero>(
        end - first, k, q, kWidth, scores, tile.d_words, nullptr, prefetch);
    if (tile.cap > 0) cap_scores(tile, scores, (end - first) * kWidth);
    if (masked) mask_scores<Simd, kVectors>(tile, block, panel, first, end);
    find_top<Simd, kVectors>(tile, panel, end - first);
  } else {
    for (int v = 0; v < kVectors; ++v) {
      Simd::store(tile.top + v * Simd::kLanes,
                  Simd::load(tile.maximum + panel * kPanelWidth<Simd> + v * Simd::kLanes));
    }
    product_in_steps<Simd, kVectors, Strides::kKey, 1, kWidth, Start::kZero, true>(
        end - first, k, q, kWidth, scores, tile.d_words, nullptr, prefetch, tile.top);
  }
  const bool moved = softmax_block<Simd, kVectors>(tile, panel, end - first);
  const Word* v = tile.v + first / kGrain * Strides::kValue;
  const Word* p = reinterpret_cast<const Word*>(scores);
  float* o = tile.o + int64_t{panel} * tile.e * kPanelWidth<Simd>;
  const int words = (end - first) / kGrain;
  if (!tile.started[panel]) {
    product_in_steps<Simd, kVectors, 1, Strides::kValue, kWidth, Start::kZero>(
        tile.e, v, p, kWidth, o, words, nullptr, prefetch);
    tile.started[panel] = true;
  } else if (moved) {
    product_in_steps<Simd, kVectors, 1, Strides::kValue, kWidth, Start::kRescale>(
        tile.e, v, p, kWidth, o, words, tile.factor, prefetch);
  } else {
    product_in_steps<Simd, kVectors, 1, Strides::kValue, kWidth, Start::kAdd>(
        tile.e, v, p, kWidth, o, words, nullptr, prefetch);
  }
  if (block.not_finite != 0) {
    add_apart<Simd, Number, kVectors>(tile, block, panel, first, end);
  }
}

/// All panels against all blocks. Q is packed while the first block is on its way.
template <class Simd, class Number, class Strides>
void attend_all(const ForwardItem& item, int64_t group, ForwardTile<Simd>& tile) {
  const int64_t low = tile.panel_keys[0].some_low;
  const int64_t high = tile.panel_keys[tile.panels - 1].some_high;
  const int d = static_cast<int>(item.shape->head_dim_qk);
  const int steps = static_cast<int>(round_up(kBlockKeys, Simd::kProductRows) +
                                     round_up(tile.e, Simd::kProductRows)) /
                    Simd::kProductRows;
  Prefetch prefetch;
  KeyBlock blocks[2];
  int64_t hint = 0;
  bool more = find_block<Number>(item, low < 0 ? 0 : low, high, &hint, blocks[0]);
  if (!more) return;
  for (int i = blocks[0].first; i < blocks[0].end; ++i) {
    prefetch_row(blocks[0].k_rows[i], d * int64_t{sizeof(Number)});
    prefetch_row(blocks[0].v_rows[i], tile.e * int64_t{sizeof(Number)});
  }
  pack_queries<Simd, Number>(item, group, tile);
  for (int current = 0; more; current = 1 - current) {
    KeyBlock& block = blocks[current];
    KeyBlock& next = blocks[1 - current];
    pack_keys<Simd, Number, Strides>(d, block, tile);
    more = find_block<Number>(item, block.position + kBlockKeys, high, &hint, next);
    prefetch.start(more ? &next : nullptr, d * int64_t{sizeof(Number)},
                   tile.e * int64_t{sizeof(Number)}, tile.panels * steps);
    for (int p = 0; p < tile.panels; ++p) {
      if (panel_lanes(tile, p) <= Simd::kLanes) {
        attend<Simd, Number, Strides, 1>(tile, block, p, prefetch);
      } else {
        attend<Simd, Number, Strides, Simd::kProductVectors>(tile, block, p, prefetch);
      }
    }
  }
}

/// LSE of every lane, and in `sum` what O has to be multiplied by. A row that sees no key:
/// -infinity and 0.
template <class Simd>
void set_lse(ForwardTile<Simd>& tile) {
  constexpr double kLn2 = 0.6931471805599453;
  const int lanes = tile.panels * kPanelWidth<Simd>;
  for (int i = 0; i < lanes; ++i) {
    const float base = tile.maximum[i] * tile.scale_log2;  // as in base_exponent
    tile.lse[i] = static_cast<float>(base * kLn2 + natural_log(tile.sum[i]));
  }
  for (int i = 0; i < lanes; ++i) {
    const float sum = tile.sum[i];
    const float inverse = 1 / sum;
    tile.lse[i] = sum == 0 ? -__builtin_inff() : tile.lse[i];
    tile.sum[i] = sum == 0 ? 0 : inverse;
  }
}

/// O = sum / row sum, as rows of `item.o_type`, and LSE.
template <class Simd, int kVectors>
void finish_panel(const ForwardItem& item, int64_t group, ForwardTile<Simd>& tile, int panel) {
  using Vector = typename Simd::Vector;
  constexpr int kLanes = Simd::kLanes;
  constexpr int kWidth = kVectors * kLanes;
  const int base = panel * kPanelWidth<Simd>;
  const int lanes = panel_lanes(tile, panel);
  const bool narrow = item.o_type == ScalarType::kBFloat16;
  const Rows& out = item.task->o;
  Rows lse = item.task->lse;
  if (lse.head_stride == 0) lse.head_stride = 1;
  const int64_t token = (item.row_begin + base) / group;
  int64_t head = (item.row_begin + base) % group;
  const int64_t bytes = narrow ? 2 : 4;
  std::byte* row = row_address(out, narrow ? 2 : 4, token, item.kv_head * group + head);
  auto* lse_row =
      reinterpret_cast<float*>(row_address(lse, sizeof(float), token, item.kv_head * group + head));
  std::byte* rows[kWidth];
  for (int i = 0; i < lanes; ++i) {
    rows[i] = row;
    *lse_row = tile.lse[base + i];
    row += out.head_stride * bytes;
    lse_row += lse.head_stride;
    if (++head == group) {
      head = 0;
      row += (out.token_stride - group * out.head_stride) * bytes;
      lse_row += lse.token_stride - group * lse.head_stride;
    }
  }
  const float* o = tile.o + int64_t{base} * tile.e;
  for (int v = 0; v * kLanes < lanes; ++v) {
    const Vector factor = Simd::load(tile.sum + base + v * kLanes);
    const int here = lanes - v * kLanes < kLanes ? lanes - v * kLanes : kLanes;
    for (int e = 0; e < tile.e; e += kLanes) {
      const int left = tile.e - e < kLanes ? tile.e - e : kLanes;
      Vector square[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        square[i] = Simd::zero();
        if (i < left && tile.started[panel]) {
          square[i] = Simd::load(o + (e + i) * kWidth + v * kLanes);
        }
        square[i] = Simd::add(Simd::multiply(square[i], factor), Simd::zero());
      }
      Simd::transpose(square);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        if (i >= here) continue;
        std::byte* to = rows[v * kLanes + i];
        if (narrow) {
          Simd::narrow_first(reinterpret_cast<uint16_t*>(to) + e, left, square[i]);
        } else {
          Simd::store_first(reinterpret_cast<float*>(to) + e, left, square[i]);
        }
      }
    }
  }
}

template <class Simd>
void set_scale(const Shape& shape, ForwardTile<Simd>& tile) {
  constexpr double kLog2E = 1.4426950408889634;
  const double scale = shape.softmax_scale < 0 ? -shape.softmax_scale : shape.softmax_scale;
  if (shape.softcap > 0) {
    tile.cap = static_cast<float>(shape.softcap);
    tile.cap_scale = static_cast<float>(scale / shape.softcap);
  }
  tile.scale_log2 = static_cast<float>((shape.softcap > 0 ? 1 : scale) * kLog2E);
  if (tile.scale_log2 < kLeastScale) tile.scale_log2 = kLeastScale;
}

/// Words of scratch behind the ForwardTile; the same for both strides.
template <class Simd>
size_t forward_words(const Shape& shape) {
  const auto d_words = static_cast<size_t>(row_words<Simd>(static_cast<int>(shape.head_dim_qk)));
  const auto e = static_cast<size_t>(shape.head_dim_v);
  return kTileRows * (d_words + e) + 2 * kBlockKeys * size_t{kLongStride};
}

template <class Simd>
size_t forward_scratch_bytes(const Shape& shape) {
  return round_up(sizeof(ForwardTile<Simd>), 64) + forward_words<Simd>(shape) * sizeof(Word);
}

template <class Simd, class Number, class Strides>
void forward_with_strides(const ForwardItem& item, ForwardTile<Simd>& tile) {
  const int64_t group = item.shape->num_heads / item.shape->num_kv_heads;
  set_limits(item, group, tile);
  attend_all<Simd, Number, Strides>(item, group, tile);
  set_lse(tile);
  for (int p = 0; p < tile.panels; ++p) {
    if (panel_lanes(tile, p) <= Simd::kLanes) {
      finish_panel<Simd, 1>(item, group, tile, p);
    } else {
      finish_panel<Simd, Simd::kProductVectors>(item, group, tile, p);
    }
  }
}

/// The tile's state in `scratch`, which lies before what the tile points to.
template <class Simd>
ForwardTile<Simd>& start_tile(const ForwardItem& item, std::byte* scratch) {
  const Shape& shape = *item.shape;
  auto& tile = *new (scratch) ForwardTile<Simd>;
  tile.rows = item.row_end - item.row_begin;
  tile.panels = static_cast<int>(round_up(tile.rows, kPanelWidth<Simd>) / kPanelWidth<Simd>);
  tile.d_words = row_words<Simd>(static_cast<int>(shape.head_dim_qk));
  tile.e = static_cast<int>(shape.head_dim_v);
  tile.k = reinterpret_cast<Word*>(scratch + round_up(sizeof(ForwardTile<Simd>), 64));
  tile.v = tile.k + kBlockKeys * kLongStride;
  tile.q = tile.v + kBlockKeys * kLongStride;
  tile.o = reinterpret_cast<float*>(tile.q + kTileRows * tile.d_words);
  set_scale(shape, tile);
  return tile;
}

template <class Simd, class Number>
void forward_item(const ForwardItem& item, std::byte* scratch) {
  ForwardTile<Simd>& tile = start_tile<Simd>(item, scratch);
  const bool long_k = tile.d_words > 128;
  const bool long_v = tile.e > 128;
  if (!long_k && !long_v) {
    forward_with_strides<Simd, Number, Strides<144, 144>>(item, tile);
  } else if (!long_k) {
    forward_with_strides<Simd, Number, Strides<144, kLongStride>>(item, tile);
  } else {
    forward_with_strides<Simd, Number, Strides<kLongStride, kLongStride>>(item, tile);
  }
}

}  // namespace
}  // namespace distca::kernels
