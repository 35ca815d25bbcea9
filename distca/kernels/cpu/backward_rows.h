#pragma once
// The backward pass of one item: copies rows and keys into the tile's memory, and adds gradients to
// the caller's. Only for sources that are compiled for one instruction set.

#include "distca/kernels/cpu/backward_tile.h"

namespace distca::kernels {
namespace {

/// Sets LSE, delta and the visible keys of each row.
template <class Simd, class Number, bool kWide>
void BackwardTile<Simd, Number, kWide>::place_rows(const BackwardItem& item) {
  const EngineTask& task = *item.task;
  const Mask& mask = task.mask;
  const auto* lse = static_cast<const float*>(task.lse.data);
  const auto* delta = static_cast<const float*>(task.delta.data);
  int64_t token = row_begin_ / group_;
  int64_t head = row_begin_ % group_;
  int i = 0;
  for (; i < rows_; ++i) {
    const int64_t position = task.q_position + token;
    first_[i] = mask.window_left < 0 ? 0 : larger(0, position - mask.window_left);
    last_[i] = mask.causal ? position + 1 : kFarPosition;
    if (mask.window_right >= 0) {
      last_[i] = smaller(last_[i], position + smaller(mask.window_right, kFarPosition) + 1);
    }
    const int64_t h = kv_head_ * group_ + head;
    lse_[i] = lse[token * task.lse.token_stride + h * task.lse.head_stride];
    delta_[i] = delta[token * task.delta.token_stride + h * task.delta.head_stride];
    if (lse_[i] == -__builtin_inff()) lse_[i] = kNoKeys, delta_[i] = 0;  // it sees no key at all
    if (++head == group_) head = 0, ++token;
  }
  // Lanes beyond the tile's rows see what its last row sees, so that they need no mask.
  for (; i < panels_ * kPanelRows; ++i) {
    first_[i] = first_[rows_ - 1];
    last_[i] = last_[rows_ - 1];
    lse_[i] = kNoKeys;
    delta_[i] = 0;
  }
}

/// Copies a panel of Q or dO twice: to `lanes`, the panel's [words][32], and to `by_row`, its
/// group's [column panels][kGroupWords][32].
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

/// Copies the rows of a group of panels, when the group first sees a key tile.
template <class Simd, class Number, bool kWide>
void BackwardTile<Simd, Number, kWide>::pack_group(int first_panel) {
  const int group_words = first_panel * kPanelWords * kPanelRows;
  for (int i = first_panel; i < first_panel + kGroup && i < panels_; ++i) {
    pack_panel(q_at_ + i * kPanelRows, i, d_, q_lanes_ + i * d_ / kWordNumbers * kPanelRows,
               q_rows_ + group_words * d_panels_);
    pack_panel(d_o_at_ + i * kPanelRows, i, e_, d_o_lanes_ + i * e_ / kWordNumbers * kPanelRows,
               d_o_rows_ + group_words * e_panels_);
  }
  packed_[first_panel / kGroup] = true;
}

/// Computes dq += scale * dQ^T.
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

/// Finds K and V of the key tile at `start`, which load_key_tile copies.
template <class Simd, class Number, bool kWide>
void BackwardTile<Simd, Number, kWide>::find_key_tile(const BackwardItem& item, int64_t start) {
  const KeyFragment* fragments = item.task->keys.data();
  find_keys(fragments, static_cast<int64_t>(item.task->keys.size()), start, &fragment_, &next_);
  key_tile_addresses(fragments, next_, sizeof(Number), kv_head_, next_k_, next_v_);
}

/// Copies K and V of the key tile. Rows of keys that do not exist become 0.
template <class Simd, class Number, bool kWide>
void BackwardTile<Simd, Number, kWide>::load_key_tile(const BackwardItem& item) {
  pieces_ = next_;
  const void** k = next_k_;
  const void** v = next_v_;
  bool finite = true;
  if constexpr (Simd::kPairs) {
    pack_rows<Simd, Number>(k, kTileKeys, d_, k_, kKeyStride);
    finite = pack_summed_rows<Simd, Number, true>(k, kTileKeys, d_, k_copy_, kColumnStride);
    k_summed_ = k_copy_;
  } else {
    finite = pack_rows<Simd, Number, true>(k, kTileKeys, d_, k_, kKeyStride);
    k_summed_ = k_;
  }
  pack_rows<Simd, Number>(v, kTileKeys, e_, v_, kKeyStride);
  if (!finite) {
    // Rows that do not see such a key have dS = 0 there, and 0 x infinity is not 0. Rows that see
    // it have a dS of 0 (because P = 0) or of NaN.
    for (int i = 0; i < kTileKeys; ++i) {
      if (!pack_rows<Simd, Number, true>(k + i, 1, d_, k_copy_, kKeyStride)) k[i] = kZeroRow;
    }
    pack_summed_rows<Simd, Number>(k, kTileKeys, d_, k_copy_, kColumnStride);
    k_summed_ = k_copy_;
  }
  gaps_ = pieces_.present != first_bits(kTileKeys);
  for (int i = 0; i < kTileKeys; ++i) {
    key_[i] = (pieces_.present >> i & 1) != 0 ? i : -1;
    dk_rows_[i] = dv_rows_[i] = nullptr;
  }
  for (int p = 0; p < pieces_.pieces; ++p) {
    const KeyPiece& piece = pieces_.piece[p];
    const KeyFragment& fragment = item.task->keys.data()[piece.fragment];
    key_row_addresses(fragment.dk, sizeof(float), kv_head_, piece, dk_rows_);
    key_row_addresses(fragment.dv, sizeof(float), kv_head_, piece, dv_rows_);
  }
}

/// Begins to ask for what is needed next, at the same time as the work on this key tile: rows that
/// are not packed yet, dK and dV of the key tile, and K and V of the next key tile or, after the
/// last one, dQ.
template <class Simd, class Number, bool kWide>
void BackwardTile<Simd, Number, kWide>::start_fetch(int64_t start, bool more) {
  int seeing = 0;
  for (int panel = 0; panel < panels_; ++panel) seeing += visible(panel, start).end > 0 ? 1 : 0;
  // The steps over rows of the products of one panel, approximately.
  const int steps = 2 * (kTileKeys / Simd::kProductRows) + d_ / Simd::kProductRows +
                    kTileKeys / Simd::kProductRows * (d_panels_ + e_panels_) / 2;
  fetch_.start();
  for (int i = kGroup; i < panels_; ++i) {
    if (packed_[i / kGroup]) continue;
    fetch_.add(q_at_ + i * kPanelRows, kPanelRows, d_ * sizeof(Number));
    fetch_.add(d_o_at_ + i * kPanelRows, kPanelRows, e_ * sizeof(Number));
  }
  fetch_.add(dk_rows_, kTileKeys, d_ * sizeof(float));
  fetch_.add(dv_rows_, kTileKeys, e_ * sizeof(float));
  if (more) {
    fetch_.add(next_k_, kTileKeys, d_ * sizeof(Number));
    fetch_.add(next_v_, kTileKeys, e_ * sizeof(Number));
  } else {
    fetch_.add(dq_rows_, rows_, d_ * sizeof(float));
  }
  fetch_.spread(seeing == 0 ? 1 : seeing * steps);
}

/// Adds dK and dV of the key tile to the caller's.
template <class Simd, class Number, bool kWide>
void BackwardTile<Simd, Number, kWide>::add_keys() {
  constexpr int kAhead = 8;
  for (int key = 0; key < kTileKeys; ++key) {
    if (key + kAhead < kTileKeys) {
      fetch_rows(dk_rows_ + key + kAhead, 1, d_ * sizeof(float));
      fetch_rows(dv_rows_ + key + kAhead, 1, e_ * sizeof(float));
    }
    if (dk_rows_[key] == nullptr) continue;
    auto* dk = static_cast<float*>(const_cast<void*>(dk_rows_[key]));
    auto* dv = static_cast<float*>(const_cast<void*>(dv_rows_[key]));
    if (started_[0] && started_[1]) {
      add_key<2>(dk_, key, d_, scale_, dk);
      add_key<2>(dv_, key, e_, 1, dv);
    } else if (started_[0] || started_[1]) {
      add_key<1>(dk_ + started_[1], key, d_, scale_, dk);
      add_key<1>(dv_ + started_[1], key, e_, 1, dv);
    }
  }
}

/// Adds one key of kSums sums [column panels][64][32] to `to`.
template <class Simd, class Number, bool kWide>
template <int kSums>
void BackwardTile<Simd, Number, kWide>::add_key(const float* const* sums, int key, int dim,
                                                float scale, float* to) {
  for (int column = 0; column < dim; column += kLanes) {
    const int from = (column / kPanelRows * kTileKeys + key) * kPanelRows + column % kPanelRows;
    Vector sum = Simd::load(sums[0] + from);
    if constexpr (kSums == 2) sum = sum + Simd::load(sums[1] + from);
    add_scaled(sum, scale, static_cast<int>(smaller(kLanes, dim - column)), to + column);
  }
}

}  // namespace
}  // namespace distca::kernels
