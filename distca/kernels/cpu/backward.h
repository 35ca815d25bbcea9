#pragma once
// Backward of one item: a tile of rows stays in the cache, key blocks pass by. Units of one
// instruction set only.
//
//   P = exp(S - LSE)  dS = P * (dP - delta)  dV = P^T dO  dK = scale dS^T Q  dQ = scale dS K
//
// S^T and dP^T [keys][rows] are made for two panels at a time and never leave the first cache.
// dQ^T [D][32] of each panel is kept to the end; dK and dV of a key block are summed over the
// tile's rows, then added to the caller's. Blocks are aligned to the document's start.

#include <cstdint>
#include <cstring>

#include "distca/kernels/attention.h"
#include "distca/kernels/cpu/engine.h"
#include "distca/kernels/cpu/exponential.h"
#include "distca/kernels/cpu/pack.h"
#include "distca/kernels/cpu/product.h"
#include "distca/kernels/cpu/word.h"

namespace distca::kernels {
namespace {

constexpr int64_t kFar = int64_t{1} << 61;  // beyond every position
constexpr float kLog2E = 1.44269504F;
constexpr float kNoKeys = 1e30F;  // LSE of rows without keys: every probability is 0

/// Keys of the current block that a panel sees.
struct PanelView {
  int end = 0;          // 0: none; even, no key from here on is seen
  bool masked = false;  // some key below is hidden from some row
};

/// Memory that is needed soon, asked for a few cache lines at a time beside the arithmetic: more at
/// once would hold up the loads of the products.
class Fetch {
 public:
  void start() { rows_ = row_ = line_ = lines_ = 0; }
  void add(const void* const* rows, int count, size_t bytes) {
    const int lines = static_cast<int>((bytes + 63) / 64);
    for (int i = 0; i < count; ++i) {
      if (rows[i] == nullptr) continue;
      row_at_[rows_] = static_cast<const std::byte*>(rows[i]);
      row_lines_[rows_++] = lines;
      lines_ += lines;
    }
  }
  /// Everything within `steps` steps.
  void spread(int steps) { step_ = (lines_ + steps - 1) / steps; }
  void step() {
    for (int i = 0; i < step_ && row_ < rows_; ++i) {
      __builtin_prefetch(row_at_[row_] + int64_t{64} * line_, 0, 2);
      if (++line_ == row_lines_[row_]) line_ = 0, ++row_;
    }
  }

 private:
  static constexpr int kMostRows = 2 * kBlockKeys + kTileRows;
  const std::byte* row_at_[kMostRows];
  int row_lines_[kMostRows];
  int rows_ = 0, row_ = 0, line_ = 0, lines_ = 0, step_ = 0;
};

struct FetchStep {
  Fetch* fetch;
  void operator()() const { fetch->step(); }
};

/// Backward of one item. kWide: a head dim exceeds 128.
template <class Simd, class Number, bool kWide>
class BackwardTile {
 public:
  /// `base` nullptr: only to ask for the bytes of scratch.
  BackwardTile(const Shape& shape, std::byte* base);
  size_t scratch_bytes() const { return bytes_; }
  void run(const BackwardItem& item);

 private:
  using Vector = typename Simd::Vector;
  using Integers = typename Simd::Integers;
  static constexpr int kLanes = Simd::kLanes;
  static constexpr int kWordNumbers = Simd::kPairs ? 2 : 1;
  // Panels that dK and dV take together: 64 words to sum over for each load of a result.
  static constexpr int kGroup = 2 * kWordNumbers;
  static constexpr int kPanelWords = kPanelRows / kWordNumbers;
  static constexpr int kGroupWords = kGroup * kPanelWords;
  // Words between rows, odd numbers of cache lines: of keys, and of words that hold one column.
  static constexpr int kColumnStride = kWide ? kMostHeadDim + 16 : 128 + 16;
  static constexpr int kKeyStride = Simd::kPairs ? 128 + 16 : kColumnStride;

  // Words between the keys of P and dS, of P and dS for sums over keys, of S and dP of one panel.
  // In fp32 these are all the same memory.
  static constexpr int kRowStride = kGroupWords + 16;
  static constexpr int kLaneStride = kGroup * kPanelRows + 16;
  static constexpr int kScoreStride = Simd::kPairs ? kPanelRows + 16 : kRowStride;

  template <class T>
  T* take(std::byte* base, int64_t count);
  void place_rows(const BackwardItem& item);
  void pack_tile(const BackwardItem& item);
  void pack_panel(const void* const* rows, int panel, int dim, Word* lanes, Word* by_row);
  void find_block(const BackwardItem& item, int64_t start);
  void load_block(const BackwardItem& item);
  void start_fetch(int64_t start, bool more);
  PanelView visible(int panel, int64_t start) const;
  void block(int64_t start);
  void attend_group(int panel, int64_t start);
  void score_panel(int panel, const PanelView& view, int64_t start);
  template <bool kMasked, bool kCapped>
  void probabilities(int panel, int place, int keys, const float* s, const float* dp);
  template <bool kCapped>
  static Vector probability(Vector score, Vector scale, Vector cap, Vector lse, Vector* slope);
  void add_group(const PanelView* views, const Word* scores, const Word* rows, int columns,
                 float* sum);
  void add_keys();
  static void add_key(const float* sums, int key, int dim, float scale, float* to);
  void add_queries();

  /// to += scale * x, of the first `count` lanes.
  static void add_scaled(Vector x, float scale, int count, float* to) {
    if (count == kLanes) {
      Simd::store(to, Simd::multiply_add(x, Simd::set(scale), Simd::load(to)));
      return;
    }
    const Vector before = Simd::load_first(reinterpret_cast<const Word*>(to), count);
    Simd::store_first(to, count, Simd::multiply_add(x, Simd::set(scale), before));
  }

  template <int kStrideM, int kStrideK, int kStrideC, Start kStart>
  void panel_product(int rows, const Word* a, const Word* b, int b_stride, float* c, int words) {
    constexpr int kWidth = Simd::kProductVectors * kLanes;
    for (int at = 0; at < kPanelRows; at += kWidth) {
      product<Simd, Simd::kProductVectors, kStrideM, kStrideK, kStrideC, kStart>(
          rows, a, b + at, b_stride, c + at, words, nullptr, FetchStep{&fetch_});
    }
  }

  // Dims of Q and K, of dO and V, and the same in column panels of 32.
  int d_, e_, d_panels_, e_panels_;
  int64_t group_;
  float scale_, softcap_;
  int64_t kv_head_;
  int64_t row_begin_;
  int rows_;
  int panels_;
  size_t bytes_ = 0;
  // Rows of the tile.
  Word* q_lanes_;    // [panels][D words][32]
  Word* d_o_lanes_;  // [panels][E words][32]
  Word* q_rows_;     // [pairs of panels][column panels][64 rows in words][32]
  Word* d_o_rows_;
  float* dq_;  // [panels][D][32]
  float* lse_;
  float* delta_;
  int64_t* first_;  // [tile rows] keys that the row sees, as positions
  int64_t* last_;   // exclusive
  // The key block.
  Word* k_;  // [64][kKeyStride]
  Word* v_;
  Word* k_copy_;          // [64][kColumnStride]
  const Word* k_summed_;  // K in the order of a sum over keys: k_ or k_copy_
  float* dk_;             // [column panels][64][32]
  float* dv_;
  Fetch fetch_;
  KeyPieces pieces_;
  KeyPieces next_;  // of the next block, and its K and V
  const void* next_k_[kBlockKeys];
  const void* next_v_[kBlockKeys];
  const void* dq_rows_[kTileRows];
  int64_t fragment_ = 0;  // where the search for keys begins
  const void* dk_rows_[kBlockKeys];
  const void* dv_rows_[kBlockKeys];
  int32_t* key_;  // [64] the key's number in the block, or -1 where there is none
  bool gaps_;     // some key is missing
  // Two panels.
  float* s_;  // [64][kScoreStride], bf16 only
  float* dp_;
  Word* p_;  // [64][kRowStride]
  Word* ds_;
  Word* ds_lanes_;           // [32][kLaneStride], bf16 only
  int32_t* first_in_block_;  // [32]
  int32_t* last_in_block_;
};

int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
int64_t panels_of(int64_t n) { return (n + kPanelRows - 1) / kPanelRows; }

/// Asks for memory that is needed soon: rows that lie far apart keep the processor waiting
/// otherwise. Addresses need not be valid.
void fetch_rows(const void* const* rows, int count, size_t bytes) {
  for (int i = 0; i < count; ++i) {
    for (size_t j = 0; j < bytes; j += 64) {
      __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(rows[i]) + j));
    }
  }
}

template <class Simd, class Number, bool kWide>
template <class T>
T* BackwardTile<Simd, Number, kWide>::take(std::byte* base, int64_t count) {
  std::byte* at = base == nullptr ? nullptr : base + bytes_;
  bytes_ += (count * sizeof(T) + 63) / 64 * 64;
  return reinterpret_cast<T*>(at);
}

template <class Simd, class Number, bool kWide>
BackwardTile<Simd, Number, kWide>::BackwardTile(const Shape& shape, std::byte* base)
    : d_(static_cast<int>(shape.head_dim_qk)),
      e_(static_cast<int>(shape.head_dim_v)),
      d_panels_(static_cast<int>(panels_of(d_))),
      e_panels_(static_cast<int>(panels_of(e_))),
      group_(shape.num_heads / shape.num_kv_heads),
      scale_(static_cast<float>(shape.softmax_scale)),
      softcap_(static_cast<float>(shape.softcap)) {
  k_ = take<Word>(base, kBlockKeys * kKeyStride);
  v_ = take<Word>(base, kBlockKeys * kKeyStride);
  k_copy_ = take<Word>(base, kBlockKeys * kColumnStride);
  p_ = take<Word>(base, kBlockKeys * kRowStride);
  ds_ = take<Word>(base, kBlockKeys * kRowStride);
  if (Simd::kPairs) {
    s_ = take<float>(base, kBlockKeys * kScoreStride);
    dp_ = take<float>(base, kBlockKeys * kScoreStride);
    ds_lanes_ = take<Word>(base, kBlockKeys / 2 * kLaneStride);
  }
  dk_ = take<float>(base, d_panels_ * kBlockKeys * kPanelRows);
  dv_ = take<float>(base, e_panels_ * kBlockKeys * kPanelRows);
  key_ = take<int32_t>(base, kBlockKeys);
  first_in_block_ = take<int32_t>(base, kPanelRows);
  last_in_block_ = take<int32_t>(base, kPanelRows);
  lse_ = take<float>(base, kTileRows);
  delta_ = take<float>(base, kTileRows);
  first_ = take<int64_t>(base, kTileRows);
  last_ = take<int64_t>(base, kTileRows);
  q_lanes_ = take<Word>(base, kTileRows * d_ / kWordNumbers);
  d_o_lanes_ = take<Word>(base, kTileRows * e_ / kWordNumbers);
  q_rows_ = take<Word>(base, kTileRows * d_panels_ * kPanelRows / kWordNumbers);
  d_o_rows_ = take<Word>(base, kTileRows * e_panels_ * kPanelRows / kWordNumbers);
  dq_ = take<float>(base, kTileRows * d_);
}

// ---------------------------------------------------------------- rows of the tile

/// LSE, delta and the visible keys of each row; rows beyond the tile see nothing.
template <class Simd, class Number, bool kWide>
void BackwardTile<Simd, Number, kWide>::place_rows(const BackwardItem& item) {
  const BackwardTask& task = *item.task;
  const Mask& mask = task.mask;
  const auto* lse = static_cast<const float*>(task.lse.data);
  const auto* delta = static_cast<const float*>(task.delta.data);
  const int64_t lse_head = task.lse.head_stride == 0 ? 1 : task.lse.head_stride;
  const int64_t delta_head = task.delta.head_stride == 0 ? 1 : task.delta.head_stride;
  int64_t token = row_begin_ / group_;
  int64_t head = row_begin_ % group_;
  int i = 0;
  for (; i < rows_; ++i) {
    const int64_t position = task.q_position + token;
    first_[i] = mask.window_left < 0 ? 0 : larger(0, position - mask.window_left);
    last_[i] = mask.causal ? position + 1 : kFar;
    if (mask.window_right >= 0) {
      last_[i] = smaller(last_[i], position + smaller(mask.window_right, kFar) + 1);
    }
    const int64_t h = kv_head_ * group_ + head;
    lse_[i] = lse[token * task.lse.token_stride + h * lse_head];
    delta_[i] = delta[token * task.delta.token_stride + h * delta_head];
    if (lse_[i] < -kNoKeys) lse_[i] = kNoKeys, delta_[i] = 0;  // no key anywhere
    if (++head == group_) head = 0, ++token;
  }
  // Rows beyond the tile see what its last row sees, so that they call for no mask.
  for (; i < panels_ * kPanelRows; ++i) {
    first_[i] = first_[rows_ - 1];
    last_[i] = last_[rows_ - 1];
    lse_[i] = kNoKeys;
    delta_[i] = 0;
  }
}

/// `lanes`: the panel's [words][32]. `by_row`: its pair's [column panels][64 rows in words][32].
template <class Simd, class Number, bool kWide>
void BackwardTile<Simd, Number, kWide>::pack_panel(const void* const* rows, int panel, int dim,
                                                   Word* lanes, Word* by_row) {
  pack_transposed<Simd, Number>(rows, kPanelRows, dim, lanes, kPanelRows);
  const void* from[kPanelRows];
  for (int i = 0; i < kPanelRows; ++i) from[i] = rows[i];
  by_row += panel % kGroup * kPanelWords * kPanelRows;
  for (int column = 0; column < dim; column += kPanelRows) {
    const int columns = static_cast<int>(smaller(kPanelRows, dim - column));
    if (columns < kPanelRows) {
      std::memset(by_row, 0, kPanelRows / kWordNumbers * kPanelRows * sizeof(Word));
    }
    pack_summed_rows<Simd, Number>(from, kPanelRows, columns, by_row, kPanelRows);
    by_row += kGroupWords * kPanelRows;
    for (const void*& row : from) row = static_cast<const Number*>(row) + columns;
  }
}

template <class Simd, class Number, bool kWide>
void BackwardTile<Simd, Number, kWide>::pack_tile(const BackwardItem& item) {
  const int padded = panels_ * kPanelRows;
  const void* q[kTileRows];
  const void* d_o[kTileRows];
  query_row_addresses(item.task->q, sizeof(Number), group_, kv_head_, row_begin_, rows_, padded, q);
  query_row_addresses(item.task->d_o, sizeof(Number), group_, kv_head_, row_begin_, rows_, padded,
                      d_o);
  const auto fetch = [&](int panel) {
    fetch_rows(q + panel * kPanelRows, kPanelRows, d_ * sizeof(Number));
    fetch_rows(d_o + panel * kPanelRows, kPanelRows, e_ * sizeof(Number));
  };
  fetch(0);
  for (int panel = 0; panel < panels_; ++panel) {
    if (panel + 1 < panels_) fetch(panel + 1);
    pack_panel(q + panel * kPanelRows, panel, d_, q_lanes_ + panel * d_ / kWordNumbers * kPanelRows,
               q_rows_ + panel / kGroup * d_panels_ * kGroupWords * kPanelRows);
    pack_panel(d_o + panel * kPanelRows, panel, e_,
               d_o_lanes_ + panel * e_ / kWordNumbers * kPanelRows,
               d_o_rows_ + panel / kGroup * e_panels_ * kGroupWords * kPanelRows);
  }
}

/// dq += scale * dQ^T.
template <class Simd, class Number, bool kWide>
void BackwardTile<Simd, Number, kWide>::add_queries() {
  for (int row = 0; row < rows_; row += kLanes) {
    const int lanes = static_cast<int>(smaller(kLanes, rows_ - row));
    const float* from = dq_ + row / kPanelRows * d_ * kPanelRows + row % kPanelRows;
    for (int column = 0; column < d_; column += kLanes) {
      const int columns = static_cast<int>(smaller(kLanes, d_ - column));
      Vector square[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        square[i] = i < columns ? Simd::load(from + (column + i) * kPanelRows) : Simd::zero();
      }
      Simd::transpose(square);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        if (i >= lanes) continue;
        auto* to = static_cast<float*>(const_cast<void*>(dq_rows_[row + i])) + column;
        add_scaled(square[i], scale_, columns, to);
      }
    }
  }
}

// ---------------------------------------------------------------- keys of a block

/// Finds K and V of the block at `start`, which load_block copies.
template <class Simd, class Number, bool kWide>
void BackwardTile<Simd, Number, kWide>::find_block(const BackwardItem& item, int64_t start) {
  const KeyFragment* fragments = item.task->keys.data();
  find_keys(fragments, static_cast<int64_t>(item.task->keys.size()), start, &fragment_, &next_);
  key_block_addresses(fragments, next_, sizeof(Number), kv_head_, next_k_, next_v_);
}

/// Copies K and V of the block; rows of missing keys are 0.
template <class Simd, class Number, bool kWide>
void BackwardTile<Simd, Number, kWide>::load_block(const BackwardItem& item) {
  pieces_ = next_;
  const void** k = next_k_;
  const void** v = next_v_;
  bool finite = pack_rows<Simd, Number>(k, kBlockKeys, d_, k_, kKeyStride);
  pack_rows<Simd, Number>(v, kBlockKeys, e_, v_, kKeyStride);
  k_summed_ = k_;
  if constexpr (Simd::kPairs) {
    finite = pack_summed_rows<Simd, Number>(k, kBlockKeys, d_, k_copy_, kColumnStride);
    k_summed_ = k_copy_;
  }
  if (!finite) {
    // Rows that do not see such a key have dS = 0 there, and 0 x infinity is not 0. Rows that do
    // have a dS of 0 (P = 0) or none.
    for (int i = 0; i < kBlockKeys; ++i) {
      if (!pack_rows<Simd, Number>(k + i, 1, d_, k_copy_, kKeyStride)) k[i] = kZeroRow;
    }
    pack_summed_rows<Simd, Number>(k, kBlockKeys, d_, k_copy_, kColumnStride);
    k_summed_ = k_copy_;
  }
  gaps_ = pieces_.present != first_bits(kBlockKeys);
  for (int i = 0; i < kBlockKeys; ++i) {
    key_[i] = (pieces_.present >> i & 1) != 0 ? i : -1;
    dk_rows_[i] = dv_rows_[i] = nullptr;
  }
  for (int p = 0; p < pieces_.pieces; ++p) {
    const KeyPiece& piece = pieces_.piece[p];
    const KeyGradient& gradient = item.task->key_gradients.data()[piece.fragment];
    key_row_addresses(gradient.dk, sizeof(float), kv_head_, piece, dk_rows_);
    key_row_addresses(gradient.dv, sizeof(float), kv_head_, piece, dv_rows_);
  }
}

/// During the work on this block: its dK and dV, and K and V of the next one, or dQ.
template <class Simd, class Number, bool kWide>
void BackwardTile<Simd, Number, kWide>::start_fetch(int64_t start, bool more) {
  int seeing = 0;
  for (int panel = 0; panel < panels_; ++panel) seeing += visible(panel, start).end > 0 ? 1 : 0;
  // Blocks of rows of the products of one panel, about.
  const int steps = 2 * (kBlockKeys / Simd::kProductRows) + d_ / Simd::kProductRows +
                    kBlockKeys / Simd::kProductRows * (d_panels_ + e_panels_) / 2;
  fetch_.start();
  fetch_.add(dk_rows_, kBlockKeys, d_ * sizeof(float));
  fetch_.add(dv_rows_, kBlockKeys, e_ * sizeof(float));
  if (more) {
    fetch_.add(next_k_, kBlockKeys, d_ * sizeof(Number));
    fetch_.add(next_v_, kBlockKeys, e_ * sizeof(Number));
  } else {
    fetch_.add(dq_rows_, rows_, d_ * sizeof(float));
  }
  fetch_.spread(seeing == 0 ? 1 : seeing * steps);
}

/// Adds dK and dV of the block to the caller's.
template <class Simd, class Number, bool kWide>
void BackwardTile<Simd, Number, kWide>::add_keys() {
  constexpr int kAhead = 8;
  for (int key = 0; key < kBlockKeys; ++key) {
    if (key + kAhead < kBlockKeys) {
      fetch_rows(dk_rows_ + key + kAhead, 1, d_ * sizeof(float));
      fetch_rows(dv_rows_ + key + kAhead, 1, e_ * sizeof(float));
    }
    if (dk_rows_[key] == nullptr) continue;
    add_key(dk_, key, d_, scale_, static_cast<float*>(const_cast<void*>(dk_rows_[key])));
    add_key(dv_, key, e_, 1, static_cast<float*>(const_cast<void*>(dv_rows_[key])));
  }
}

/// One key of [column panels][64][32].
template <class Simd, class Number, bool kWide>
void BackwardTile<Simd, Number, kWide>::add_key(const float* sums, int key, int dim, float scale,
                                                float* to) {
  sums += key * kPanelRows;
  for (int column = 0; column < dim; column += kLanes) {
    const float* from = sums + column / kPanelRows * kBlockKeys * kPanelRows + column % kPanelRows;
    add_scaled(Simd::load(from), scale, static_cast<int>(smaller(kLanes, dim - column)),
               to + column);
  }
}

// ---------------------------------------------------------------- a block with two panels

template <class Simd, class Number, bool kWide>
PanelView BackwardTile<Simd, Number, kWide>::visible(int panel, int64_t start) const {
  if (panel >= panels_) return {};
  // Both limits ascend with the row.
  const int64_t* first = first_ + panel * kPanelRows;
  const int64_t* last = last_ + panel * kPanelRows;
  const int64_t end = smaller(kBlockKeys, last[kPanelRows - 1] - start);
  if (end <= 0 || first[0] >= start + kBlockKeys) return {};
  const bool masked = gaps_ || last[0] < start + kBlockKeys || first[kPanelRows - 1] > start;
  return {static_cast<int>((end + 1) / 2 * 2), masked};
}

/// P of a score; `slope`: of the soft cap there.
template <class Simd, class Number, bool kWide>
template <bool kCapped>
typename Simd::Vector BackwardTile<Simd, Number, kWide>::probability(Vector score, Vector scale,
                                                                     Vector cap, Vector lse,
                                                                     Vector* slope) {
  Vector difference;
  if constexpr (kCapped) {
    const Vector t = tanh<Simd>(Simd::multiply(score, scale));
    *slope = Simd::subtract(Simd::set(1), Simd::multiply(t, t));
    difference = Simd::multiply_add(t, cap, lse);
  } else {
    // Rounded once, however large its terms.
    difference = Simd::multiply_add(score, scale, lse);
  }
  return exp2<Simd, Simd::kPairs>(Simd::multiply(difference, Simd::set(kLog2E)));
}

/// P and dS of panel `panel`, number `place` of its group, from `s` and `dp` in the words of the
/// next products.
template <class Simd, class Number, bool kWide>
template <bool kMasked, bool kCapped>
void BackwardTile<Simd, Number, kWide>::probabilities(int panel, int place, int keys,
                                                      const float* s, const float* dp) {
  constexpr int kKeys = Simd::kPairs ? 2 : 1;
  constexpr int kVectors = Simd::kPairs ? 2 : 1;
  const Vector scale = Simd::set(kCapped ? scale_ / softcap_ : scale_);
  const Vector cap = Simd::set(softcap_);
  Word* p_words = p_ + place * kPanelWords;
  Word* ds_words = ds_ + place * kPanelWords;
  Word* ds_lanes = ds_lanes_ + place * kPanelRows;
  const int32_t* numbers = key_;
  for (int at = 0; at < kPanelRows; at += kVectors * kLanes) {
    Vector lse[kVectors], delta[kVectors];
    Integers first[kVectors], last[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      const int lane = at + v * kLanes;
      lse[v] = Simd::subtract(Simd::zero(), Simd::load(lse_ + panel * kPanelRows + lane));
      delta[v] = Simd::load(delta_ + panel * kPanelRows + lane);
      if constexpr (kMasked) {
        first[v] = Simd::load_integers(first_in_block_ + lane);
        last[v] = Simd::load_integers(last_in_block_ + lane);
      }
    }
    for (int key = 0; key < keys; key += kKeys) {
      Vector p[kKeys][kVectors], ds[kKeys][kVectors];
#pragma GCC unroll 2
      for (int k = 0; k < kKeys; ++k) {
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) {
          const int i = (key + k) * kScoreStride + at + v * kLanes;
          Vector slope;
          p[k][v] = probability<kCapped>(Simd::load(s + i), scale, cap, lse[v], &slope);
          Vector difference = Simd::subtract(Simd::load(dp + i), delta[v]);
          if constexpr (kCapped) difference = Simd::multiply(difference, slope);
          ds[k][v] = Simd::multiply(p[k][v], difference);
          if constexpr (kMasked) {
            const Integers number = Simd::set_integer(numbers[key + k]);
            const auto seen =
                Simd::both(Simd::at_most(first[v], number), Simd::at_most(number, last[v]));
            p[k][v] = Simd::select(seen, p[k][v], Simd::zero());
            ds[k][v] = Simd::select(seen, ds[k][v], Simd::zero());
          }
        }
      }
      if constexpr (Simd::kPairs) {
#pragma GCC unroll 2
        for (int k = 0; k < kKeys; ++k) {
          const int i = (key + k) * kRowStride + at / 2;
          Simd::store_words(p_words + i, Simd::neighbours(p[k][0], p[k][1]));
          Simd::store_words(ds_words + i, Simd::neighbours(ds[k][0], ds[k][1]));
        }
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) {
          Simd::store_words(ds_lanes + key / 2 * kLaneStride + at + v * kLanes,
                            Simd::pair(ds[0][v], ds[1][v]));
        }
      } else {
        Simd::store_words(p_words + key * kRowStride + at, p[0][0]);
        Simd::store_words(ds_words + key * kRowStride + at, ds[0][0]);
      }
    }
  }
}

/// S and dP of a panel, then P and dS.
template <class Simd, class Number, bool kWide>
void BackwardTile<Simd, Number, kWide>::score_panel(int panel, const PanelView& view,
                                                    int64_t start) {
  const int d_words = d_ / kWordNumbers;
  const int e_words = e_ / kWordNumbers;
  const int place = panel % kGroup;
  float* s = Simd::kPairs ? s_ : reinterpret_cast<float*>(p_) + place * kPanelRows;
  float* dp = Simd::kPairs ? dp_ : reinterpret_cast<float*>(ds_) + place * kPanelRows;
  panel_product<kKeyStride, 1, kScoreStride, Start::kZero>(
      view.end, k_, q_lanes_ + panel * d_words * kPanelRows, kPanelRows, s, d_words);
  panel_product<kKeyStride, 1, kScoreStride, Start::kZero>(
      view.end, v_, d_o_lanes_ + panel * e_words * kPanelRows, kPanelRows, dp, e_words);
  if (view.masked || softcap_ > 0) {
    for (int lane = 0; lane < kPanelRows; ++lane) {
      const int64_t first = first_[panel * kPanelRows + lane] - start;
      const int64_t last = last_[panel * kPanelRows + lane] - start;
      first_in_block_[lane] = static_cast<int32_t>(smaller(larger(first, 0), kBlockKeys));
      last_in_block_[lane] = static_cast<int32_t>(smaller(larger(last, 0), kBlockKeys)) - 1;
    }
  }
  if (softcap_ > 0) {  // rare: one variant, masked
    probabilities<true, true>(panel, place, view.end, s, dp);
  } else if (view.masked) {
    probabilities<true, false>(panel, place, view.end, s, dp);
  } else {
    probabilities<false, false>(panel, place, view.end, s, dp);
  }
}

/// sum [column panels][64 keys][32] += P or dS [keys][rows] x dO or Q [rows][columns] over a group
/// of panels. The panels that see keys are neighbours, their ends ascend: a key takes the rows of
/// the first panel that sees it and of those after it.
template <class Simd, class Number, bool kWide>
void BackwardTile<Simd, Number, kWide>::add_group(const PanelView* views, const Word* scores,
                                                  const Word* rows, int columns, float* sum) {
  int panels = kGroup;
  while (panels > 0 && views[panels - 1].end == 0) --panels;
  for (int c = 0; c < columns; ++c) {
    int key = 0;
    for (int i = 0; i < panels; ++i) {
      if (views[i].end <= key) continue;
      panel_product<kRowStride, 1, kPanelRows, Start::kAdd>(
          views[i].end - key, scores + key * kRowStride + i * kPanelWords,
          rows + i * kPanelWords * kPanelRows, kPanelRows, sum + key * kPanelRows,
          (panels - i) * kPanelWords);
      key = views[i].end;
    }
    rows += kGroupWords * kPanelRows;
    sum += kBlockKeys * kPanelRows;
  }
}

/// Panels [panel, panel + kGroup) against the block.
template <class Simd, class Number, bool kWide>
void BackwardTile<Simd, Number, kWide>::attend_group(int panel, int64_t start) {
  PanelView views[kGroup];
  bool any = false;
  for (int i = 0; i < kGroup; ++i) {
    views[i] = visible(panel + i, start);
    if (views[i].end > 0) score_panel(panel + i, views[i], start), any = true;
  }
  if (!any) return;
  const int group_words = panel * kPanelWords * kPanelRows;
  add_group(views, p_, d_o_rows_ + group_words * e_panels_, e_panels_, dv_);
  add_group(views, ds_, q_rows_ + group_words * d_panels_, d_panels_, dk_);
  for (int i = 0; i < kGroup; ++i) {
    if (views[i].end == 0) continue;
    const Word* ds = (Simd::kPairs ? ds_lanes_ : ds_) + i * kPanelRows;
    panel_product<1, kColumnStride, kPanelRows, Start::kAdd>(
        d_, k_summed_, ds, Simd::kPairs ? kLaneStride : kRowStride,
        dq_ + (panel + i) * d_ * kPanelRows, views[i].end / kWordNumbers);
  }
}

template <class Simd, class Number, bool kWide>
void BackwardTile<Simd, Number, kWide>::block(int64_t start) {
  std::memset(dk_, 0, d_panels_ * kBlockKeys * kPanelRows * sizeof(float));
  std::memset(dv_, 0, e_panels_ * kBlockKeys * kPanelRows * sizeof(float));
  for (int panel = 0; panel < panels_; panel += kGroup) attend_group(panel, start);
}

/// The first position from `position` on that a fragment holds; kFar if none.
int64_t next_key(const BackwardTask& task, int64_t position) {
  int64_t next = kFar;
  for (size_t f = 0; f < task.keys.size(); ++f) {
    const KeyFragment& fragment = task.keys.data()[f];
    if (fragment.tokens == 0 || fragment.position + fragment.tokens <= position) continue;
    next = smaller(next, larger(position, fragment.position));
  }
  return next;
}

template <class Simd, class Number, bool kWide>
void BackwardTile<Simd, Number, kWide>::run(const BackwardItem& item) {
  kv_head_ = item.kv_head;
  row_begin_ = item.row_begin;
  rows_ = static_cast<int>(item.row_end - item.row_begin);
  panels_ = static_cast<int>(panels_of(rows_));
  const Turn& turn = item.turn;
  place_rows(item);
  const int64_t end = last_[rows_ - 1];
  int64_t start = next_key(*item.task, first_[0]) / kBlockKeys * kBlockKeys;
  find_block(item, start);
  if (start < end) {
    fetch_rows(next_k_, kBlockKeys, d_ * sizeof(Number));
    fetch_rows(next_v_, kBlockKeys, e_ * sizeof(Number));
  }
  pack_tile(item);
  query_row_addresses(item.task->dq, sizeof(float), group_, kv_head_, row_begin_, rows_, rows_,
                      dq_rows_);
  std::memset(dq_, 0, static_cast<size_t>(panels_) * kPanelRows * d_ * sizeof(float));
  while (start < end) {
    const int64_t block_end = start + kBlockKeys;
    load_block(item);
    const int64_t next = next_key(*item.task, block_end) / kBlockKeys * kBlockKeys;
    if (next < end) find_block(item, next);
    start_fetch(start, next < end);
    block(start);
    if (turn.wait != nullptr) turn.wait(turn.state, block_end);
    add_keys();
    if (turn.done != nullptr) turn.done(turn.state, block_end);
    start = next;
  }
  if (turn.wait != nullptr) turn.wait(turn.state, Turn::kAll);
  add_queries();
  if (turn.done != nullptr) turn.done(turn.state, Turn::kAll);
}

template <class Simd, class Number>
size_t backward_scratch_bytes(const Shape& shape) {
  return shape.head_dim_qk > 128 || shape.head_dim_v > 128
             ? BackwardTile<Simd, Number, true>(shape, nullptr).scratch_bytes()
             : BackwardTile<Simd, Number, false>(shape, nullptr).scratch_bytes();
}

template <class Simd, class Number>
void backward_item(const BackwardItem& item, std::byte* scratch) {
  if (item.shape->head_dim_qk > 128 || item.shape->head_dim_v > 128) {
    BackwardTile<Simd, Number, true>(*item.shape, scratch).run(item);
  } else {
    BackwardTile<Simd, Number, false>(*item.shape, scratch).run(item);
  }
}

}  // namespace
}  // namespace distca::kernels
