#pragma once
// The backward pass of one item: what is kept in memory, and where. backward.h explains how it
// computes. Only for sources that are compiled for one instruction set.

#include <cstdint>
#include <cstring>

#include "distca/kernels/attention.h"
#include "distca/kernels/cpu/engine.h"
#include "distca/kernels/cpu/exponential.h"
#include "distca/kernels/cpu/fetch.h"
#include "distca/kernels/cpu/pack.h"
#include "distca/kernels/cpu/product.h"
#include "distca/kernels/cpu/word.h"

namespace distca::kernels {
namespace {

constexpr float kLog2E = 1.44269504F;
constexpr float kNoKeys = 1e30F;  // LSE of a row without keys, which makes every probability 0

/// The keys of the current key tile that a panel sees.
struct PanelView {
  int end = 0;          // even; no key from here on is seen. 0 means that none is seen.
  bool masked = false;  // true if a key below `end` is hidden from some row
};

/// The state of one item. kWide: a head dim exceeds 128.
template <class Simd, class Number, bool kWide>
class BackwardTile {
 public:
  /// `base` is the scratch memory, or nullptr if only scratch_bytes() is wanted.
  BackwardTile(const Shape& shape, std::byte* base);
  size_t scratch_bytes() const { return bytes_; }
  /// Computes an item.
  void run(const BackwardItem& item);

 private:
  using Vector = typename Simd::Vector;
  using Integers = typename Simd::Integers;
  static constexpr int kLanes = Simd::kLanes;
  static constexpr int kWordNumbers = Simd::kPairs ? 2 : 1;
  // Panels that dK and dV take together: the products sum over 64 words for each load of a result.
  static constexpr int kGroup = 2 * kWordNumbers;
  static constexpr int kHalfPanels = kTileRows / kPanelRows / 2;
  static constexpr int kPanelWords = kPanelRows / kWordNumbers;
  static constexpr int kGroupWords = kGroup * kPanelWords;
  // Words between the rows of keys, and between words that hold one column. Each is an odd number
  // of cache lines, so that a column is spread over all sets of the cache.
  static constexpr int kColumnStride = kWide ? kMostHeadDim + 16 : 128 + 16;
  static constexpr int kKeyStride = Simd::kPairs ? 128 + 16 : kColumnStride;

  // Words between the keys of P and dS, of P and dS for sums over keys, and of S and dP of one
  // panel. In fp32, all of these are the same memory.
  static constexpr int kRowStride = kGroupWords + 16;
  static constexpr int kLaneStride = kGroup * kPanelRows + 16;
  static constexpr int kScoreStride = Simd::kPairs ? kPanelRows + 16 : kRowStride;

  template <class T>
  T* take(std::byte* base, int64_t count);
  void place_rows(const BackwardItem& item);
  void pack_group(int first_panel);
  void pack_panel(const void* const* rows, int panel, int dim, Word* lanes, Word* by_row);
  void find_key_tile(const BackwardItem& item, int64_t start);
  void load_key_tile(const BackwardItem& item);
  void start_fetch(int64_t start, bool more);
  PanelView visible(int panel, int64_t start) const;
  void key_tile(int64_t start);
  void compute_group(int panel, int64_t start);
  void score_panel(int panel, const PanelView& view, int64_t start);
  template <bool kMasked, bool kCapped>
  void probabilities(int panel, int place, int keys, const float* s, const float* dp);
  template <bool kCapped>
  static Vector probability(Vector score, Vector scale, Vector cap, Vector lse, Vector* slope);
  void clear_keys(int half);
  template <Start kStart>
  void add_group(const PanelView* views, const Word* scores, const Word* rows, int columns,
                 float* sum);
  void add_keys();
  template <int kSums>
  static void add_key(const float* const* sums, int key, int dim, float scale, float* to);
  void add_queries();

  /// Computes to += scale * x, in the first `count` lanes.
  static void add_scaled(Vector x, float scale, int count, float* to) {
    if (count == kLanes) {
      Simd::store(to, Simd::multiply_add(x, Simd::set(scale), Simd::load(to)));
      return;
    }
    const Vector before = Simd::load_first(to, count);
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

  // Dims of Q and K, and of dO and V; the same in column panels of 32.
  int d_, e_, d_panels_, e_panels_;
  int64_t group_;
  float scale_, softcap_;
  int64_t kv_head_;
  int64_t row_begin_;
  int rows_;
  int panels_;
  size_t bytes_ = 0;
  // The rows of the tile.
  Word* q_lanes_;    // [panels][D words][32]
  Word* d_o_lanes_;  // [panels][E words][32]
  Word* q_rows_;     // [groups][column panels][kGroupWords][32]
  Word* d_o_rows_;
  float* dq_;  // [panels][D][32]
  float* lse_;
  float* delta_;
  int64_t* first_;  // [tile rows] the first position that the row sees
  int64_t* last_;   // [tile rows] the last position that the row sees, exclusive
  // The key tile.
  Word* k_;  // [64][kKeyStride]
  Word* v_;
  Word* k_copy_;          // [64][kColumnStride]
  const Word* k_summed_;  // K in the order of a sum over keys: k_ or k_copy_
  // Sums over the first and over the second half of the tile's rows. Two sums with half as many
  // terms have smaller rounding errors.
  float* dk_[2];  // [column panels][64][32]
  float* dv_[2];
  bool started_[2];  // true if the half's sums hold something of this key tile
  Fetch fetch_;
  KeyPieces pieces_;
  KeyPieces next_;  // belongs to the next key tile, as do next_k_ and next_v_
  const void* next_k_[kTileKeys];
  const void* next_v_[kTileKeys];
  const void* q_at_[kTileRows];
  const void* d_o_at_[kTileRows];
  const void* dq_rows_[kTileRows];
  bool packed_[kTileRows / kPanelRows];  // [groups] whether their Q and dO are packed
  int64_t fragment_ = 0;                 // where the search for keys begins
  const void* dk_rows_[kTileKeys];
  const void* dv_rows_[kTileKeys];
  int32_t* key_;  // [64] the key's number in the key tile, or -1 if it does not exist
  bool gaps_;     // true if some key does not exist
  // A group of panels; s_, dp_ and ds_lanes_ in bf16 only.
  float* s_;  // [64][kScoreStride]
  float* dp_;
  Word* p_;  // [64][kRowStride]
  Word* ds_;
  Word* ds_lanes_;          // [32][kLaneStride]
  int32_t* first_in_tile_;  // [32]
  int32_t* last_in_tile_;
};

int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
int64_t panels_of(int64_t n) { return round_up(n, kPanelRows) / kPanelRows; }

template <class Simd, class Number, bool kWide>
template <class T>
T* BackwardTile<Simd, Number, kWide>::take(std::byte* base, int64_t count) {
  std::byte* at = base == nullptr ? nullptr : base + bytes_;
  bytes_ += round_up(count * int64_t{sizeof(T)}, 64);
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
  k_ = take<Word>(base, kTileKeys * kKeyStride);
  v_ = take<Word>(base, kTileKeys * kKeyStride);
  k_copy_ = take<Word>(base, kTileKeys * kColumnStride);
  p_ = take<Word>(base, kTileKeys * kRowStride);
  ds_ = take<Word>(base, kTileKeys * kRowStride);
  if (Simd::kPairs) {
    s_ = take<float>(base, kTileKeys * kScoreStride);
    dp_ = take<float>(base, kTileKeys * kScoreStride);
    ds_lanes_ = take<Word>(base, kTileKeys / 2 * kLaneStride);
  }
  for (float*& dk : dk_) dk = take<float>(base, d_panels_ * kTileKeys * kPanelRows);
  for (float*& dv : dv_) dv = take<float>(base, e_panels_ * kTileKeys * kPanelRows);
  key_ = take<int32_t>(base, kTileKeys);
  first_in_tile_ = take<int32_t>(base, kPanelRows);
  last_in_tile_ = take<int32_t>(base, kPanelRows);
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

}  // namespace
}  // namespace distca::kernels
