#pragma once
// The backward pass of one item: a tile of rows stays in the cache while key tiles pass by. Only
// for sources that are compiled for one instruction set.
//
//   P = exp(S - LSE)  dS = P * (dP - delta)  dV = P^T dO  dK = scale dS^T Q  dQ = scale dS K
//
// S^T and dP^T [keys][rows] are computed for one panel at a time. dV and dK are computed for a
// group of panels, so that loading and storing their sums is spread over 64 words. Scores never
// leave the nearer caches. dQ^T [D][32] of each panel is kept to the end. dK and dV of a key tile
// are summed over the tile's rows, then added to the caller's. Key tiles are aligned to the
// document's start.

#include "distca/kernels/cpu/backward_rows.h"

namespace distca::kernels {
namespace {

/// Returns the part of the key tile at `start` that `panel` sees.
template <class Simd, class Number, bool kWide>
PanelView BackwardTile<Simd, Number, kWide>::visible(int panel, int64_t start) const {
  if (panel >= panels_) return {};
  // Both limits ascend with the row.
  const int64_t* first = first_ + panel * kPanelRows;
  const int64_t* last = last_ + panel * kPanelRows;
  const int64_t end = smaller(kTileKeys, last[kPanelRows - 1] - start);
  if (end <= 0 || first[0] >= start + kTileKeys) return {};
  const bool masked = gaps_ || last[0] < start + kTileKeys || first[kPanelRows - 1] > start;
  return {static_cast<int>(round_up(end, 2)), masked};
}

/// P of a score. `slope` becomes the derivative of the soft cap there.
template <class Simd, class Number, bool kWide>
template <bool kCapped>
typename Simd::Vector BackwardTile<Simd, Number, kWide>::probability(Vector score, Vector scale,
                                                                     Vector cap, Vector lse,
                                                                     Vector* slope) {
  Vector difference;
  if constexpr (kCapped) {
    const Vector t = tanh<Simd>(score * scale);
    *slope = Simd::set(1) - t * t;
    difference = Simd::multiply_add(t, cap, lse);
  } else {
    // This is rounded once, however large its terms are.
    difference = Simd::multiply_add(score, scale, lse);
  }
  return exp2<Simd, Simd::kPairs>(difference * Simd::set(kLog2E));
}

/// Computes P and dS of panel `panel`, which is number `place` of its group, from `s` and `dp`.
/// They are written as words of the next products.
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
      lse[v] = Simd::zero() - Simd::load(lse_ + panel * kPanelRows + lane);
      delta[v] = Simd::load(delta_ + panel * kPanelRows + lane);
      if constexpr (kMasked) {
        first[v] = Simd::load_integers(first_in_tile_ + lane);
        last[v] = Simd::load_integers(last_in_tile_ + lane);
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
          Vector difference = Simd::load(dp + i) - delta[v];
          if constexpr (kCapped) difference = difference * slope;
          ds[k][v] = p[k][v] * difference;
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
          Simd::store(p_words + i, Simd::neighbours(p[k][0], p[k][1]));
          Simd::store(ds_words + i, Simd::neighbours(ds[k][0], ds[k][1]));
        }
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) {
          Simd::store(ds_lanes + key / 2 * kLaneStride + at + v * kLanes,
                      Simd::pair(ds[0][v], ds[1][v]));
        }
      } else {
        Simd::store(p_words + key * kRowStride + at, p[0][0]);
        Simd::store(ds_words + key * kRowStride + at, ds[0][0]);
      }
    }
  }
}

/// Computes S and dP of a panel, then P and dS.
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
      first_in_tile_[lane] = static_cast<int32_t>(smaller(larger(first, 0), kTileKeys));
      last_in_tile_[lane] = static_cast<int32_t>(smaller(larger(last, 0), kTileKeys)) - 1;
    }
  }
  if (softcap_ > 0) {  // rare, so there is only one variant, with a mask
    probabilities<true, true>(panel, place, view.end, s, dp);
  } else if (view.masked) {
    probabilities<true, false>(panel, place, view.end, s, dp);
  } else {
    probabilities<false, false>(panel, place, view.end, s, dp);
  }
}

/// Adds P x dO or dS x Q of a group of panels ([keys][rows] x [rows][columns]) to `sum`
/// [column panels][64 keys][32]. The panels that see keys are neighbours, and their ends ascend. So
/// a key takes the rows of the first panel that sees it, and of all panels after that one.
template <class Simd, class Number, bool kWide>
template <Start kStart>
void BackwardTile<Simd, Number, kWide>::add_group(const PanelView* views, const Word* scores,
                                                  const Word* rows, int columns, float* sum) {
  int panels = kGroup;
  while (panels > 0 && views[panels - 1].end == 0) --panels;
  for (int c = 0; c < columns; ++c) {
    int key = 0;
    for (int i = 0; i < panels; ++i) {
      if (views[i].end <= key) continue;
      panel_product<kRowStride, 1, kPanelRows, kStart>(
          views[i].end - key, scores + key * kRowStride + i * kPanelWords,
          rows + i * kPanelWords * kPanelRows, kPanelRows, sum + key * kPanelRows,
          (panels - i) * kPanelWords);
      key = views[i].end;
    }
    rows += kGroupWords * kPanelRows;
    sum += kTileKeys * kPanelRows;
  }
}

/// Computes panels [panel, panel + kGroup) with the key tile.
template <class Simd, class Number, bool kWide>
void BackwardTile<Simd, Number, kWide>::compute_group(int panel, int64_t start) {
  PanelView views[kGroup];
  int most = 0;
  for (int i = 0; i < kGroup; ++i) {
    views[i] = visible(panel + i, start);
    if (views[i].end > most) most = views[i].end;
  }
  if (most == 0) return;
  if (!packed_[panel / kGroup]) pack_group(panel);
  for (int i = 0; i < kGroup; ++i) {
    if (views[i].end > 0) score_panel(panel + i, views[i], start);
  }
  const int group_words = panel * kPanelWords * kPanelRows;
  const Word* d_o_rows = d_o_rows_ + group_words * e_panels_;
  const Word* q_rows = q_rows_ + group_words * d_panels_;
  const int half = panel < kHalfPanels ? 0 : 1;
  if (!started_[half] && most == kTileKeys) {
    add_group<Start::kZero>(views, p_, d_o_rows, e_panels_, dv_[half]);
    add_group<Start::kZero>(views, ds_, q_rows, d_panels_, dk_[half]);
  } else {
    if (!started_[half]) clear_keys(half);
    add_group<Start::kAdd>(views, p_, d_o_rows, e_panels_, dv_[half]);
    add_group<Start::kAdd>(views, ds_, q_rows, d_panels_, dk_[half]);
  }
  started_[half] = true;
  for (int i = 0; i < kGroup; ++i) {
    if (views[i].end == 0) continue;
    const Word* ds = (Simd::kPairs ? ds_lanes_ : ds_) + i * kPanelRows;
    panel_product<1, kColumnStride, kPanelRows, Start::kAdd>(
        d_, k_summed_, ds, Simd::kPairs ? kLaneStride : kRowStride,
        dq_ + (panel + i) * d_ * kPanelRows, views[i].end / kWordNumbers);
  }
}

template <class Simd, class Number, bool kWide>
void BackwardTile<Simd, Number, kWide>::clear_keys(int half) {
  std::memset(dk_[half], 0, d_panels_ * kTileKeys * kPanelRows * sizeof(float));
  std::memset(dv_[half], 0, e_panels_ * kTileKeys * kPanelRows * sizeof(float));
}

template <class Simd, class Number, bool kWide>
void BackwardTile<Simd, Number, kWide>::key_tile(int64_t start) {
  started_[0] = started_[1] = false;
  for (int panel = 0; panel < panels_; panel += kGroup) compute_group(panel, start);
}

template <class Simd, class Number, bool kWide>
void BackwardTile<Simd, Number, kWide>::run(const BackwardItem& item) {
  kv_head_ = item.kv_head;
  row_begin_ = item.row_begin;
  rows_ = static_cast<int>(item.row_end - item.row_begin);
  panels_ = static_cast<int>(panels_of(rows_));
  const AccumulationGate& gate = item.gate;
  place_rows(item);
  const int64_t end = last_[rows_ - 1];
  const KeyFragment* fragments = item.task->keys.data();
  const auto count = static_cast<int64_t>(item.task->keys.size());
  int64_t start = next_key(fragments, count, fragment_, first_[0]) / kTileKeys * kTileKeys;
  find_key_tile(item, start);
  if (start < end) {
    fetch_rows(next_k_, kTileKeys, d_ * sizeof(Number));
    fetch_rows(next_v_, kTileKeys, e_ * sizeof(Number));
  }
  const int padded = panels_ * kPanelRows;
  query_row_addresses(item.task->q, sizeof(Number), group_, kv_head_, row_begin_, rows_, padded,
                      q_at_);
  query_row_addresses(item.task->d_o, sizeof(Number), group_, kv_head_, row_begin_, rows_, padded,
                      d_o_at_);
  const int first_rows = static_cast<int>(smaller(padded, kGroup * kPanelRows));
  fetch_rows(q_at_, first_rows, d_ * sizeof(Number));
  fetch_rows(d_o_at_, first_rows, e_ * sizeof(Number));
  for (bool& packed : packed_) packed = false;
  query_row_addresses(item.task->dq, sizeof(float), group_, kv_head_, row_begin_, rows_, rows_,
                      dq_rows_);
  std::memset(dq_, 0, static_cast<size_t>(panels_) * kPanelRows * d_ * sizeof(float));
  while (start < end) {
    const int64_t tile_end = start + kTileKeys;
    load_key_tile(item);
    const int64_t next = next_key(fragments, count, fragment_, tile_end) / kTileKeys * kTileKeys;
    if (next < end) find_key_tile(item, next);
    start_fetch(start, next < end);
    key_tile(start);
    if (gate.wait != nullptr) gate.wait(gate.state, tile_end);
    add_keys();
    if (gate.done != nullptr) gate.done(gate.state, tile_end);
    start = next;
  }
  if (gate.wait != nullptr) gate.wait(gate.state, AccumulationGate::kAll);
  add_queries();
  if (gate.done != nullptr) gate.done(gate.state, AccumulationGate::kAll);
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
