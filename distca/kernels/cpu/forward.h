#pragma once
// The forward pass of one item (engine.h): a tile of rows against all keys that they see, key tile
// by key tile. Only for sources that are compiled for one instruction set.
//
// Everything is transposed. The lanes of vectors are rows of the tile, one panel at a time:
//   S [keys][panel] = K Q^T;  P = 2^((S - max) * scale)
//   O [head_dim_v][panel] = O * factor + V^T P
// So the maximum and the sum run down the lanes, and a mask is two limits for each lane. The
// operands that are broadcast, K and V, are the same for all panels of the tile, so each key tile
// is copied only once.
//
// The bits of a row depend only on the row and its keys. Key tiles are aligned to the document's
// start. A key tile, or a part of one, that a row does not see leaves the row as it is: its
// probabilities are 0, its factor is 2^0 = 1, and a sum to which 0 is added keeps its bits, except
// for the sign of zero, which the end removes. Rows of V that are not finite are added separately,
// because 0 * infinity is not 0.

#include "distca/kernels/cpu/engine.h"
#include "distca/kernels/cpu/exponential.h"
#include "distca/kernels/cpu/fetch.h"
#include "distca/kernels/cpu/forward_softmax.h"
#include "distca/kernels/cpu/forward_tile.h"
#include "distca/kernels/cpu/pack.h"
#include "distca/kernels/cpu/product.h"

namespace distca::kernels {
namespace {

/// Adds p * V of the keys whose V is not finite, only to the rows that see them.
template <class Simd, class Number, int kVectors>
void add_apart(ForwardTile<Simd>& tile, const KeyTile& key_tile, int panel, int first, int end) {
  constexpr int kWidth = kVectors * Simd::kLanes;
  const auto* words = reinterpret_cast<const Word*>(tile.scores);
  float* o = tile.o + int64_t{panel} * tile.e * kPanelWidth<Simd>;
  const int lanes = panel_lanes(tile, panel);
  for (int j = first; j < end; ++j) {
    if ((key_tile.not_finite >> j & 1) == 0) continue;
    for (int lane = 0; lane < lanes; ++lane) {
      const int64_t position = key_tile.position + j;
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
          value = static_cast<const float*>(key_tile.v_rows[j])[i];
        } else {
          value = __builtin_bit_cast(
              float, Word{static_cast<const uint16_t*>(key_tile.v_rows[j])[i]} << 16);
        }
        o[i * kWidth + lane] += __builtin_bit_cast(float, p) * value;
      }
    }
  }
}

/// Where, between `first` and `end` of the key tile, the keys end that lanes of the panel's first
/// vector see.
template <class Simd>
int first_half_end(const ForwardTile<Simd>& tile, const KeyTile& key_tile, int panel, int first,
                   int end) {
  const int64_t high = tile.high[panel * kPanelWidth<Simd> + Simd::kLanes - 1];
  const int64_t half = round_up(high + 1 - key_tile.position, Simd::kPairs ? 2 : 1);
  return half < first ? first : half < end ? static_cast<int>(half) : end;
}

/// Computes one panel with one key tile.
template <class Simd, class Number, class Strides, int kVectors>
void add_key_tile(ForwardTile<Simd>& tile, const KeyTile& key_tile, int panel, Prefetch& prefetch) {
  constexpr int kWidth = kVectors * Simd::kLanes;
  constexpr int kGrain = Simd::kPairs ? 2 : 1;
  const PanelKeys& keys = tile.panel_keys[panel];
  int64_t low = keys.some_low - key_tile.position;
  int64_t high = keys.some_high - key_tile.position + 1;
  if (low < key_tile.first) low = key_tile.first;
  if (high > key_tile.end) high = key_tile.end;
  if (low >= high) return;
  const int first = static_cast<int>(low / kGrain * kGrain);
  const int end = static_cast<int>(round_up(high, kGrain));
  const uint64_t needed = first_bits(end) & ~first_bits(first);
  const bool masked = keys.all_low > key_tile.position + first ||
                      keys.all_high < key_tile.position + end - 1 ||
                      (key_tile.present & needed) != needed;

  float* scores = tile.scores;
  const Word* k = tile.k + first * Strides::kKey;
  const Word* q = tile.q + int64_t{panel} * tile.d_words * kPanelWidth<Simd>;
  // On the diagonal, only the lanes of the second vector see the keys from `half` on.
  int half = end;
  if constexpr (kVectors == 2) {
    if (masked) half = first_half_end(tile, key_tile, panel, first, end);
  }
  if (masked || tile.cap > 0) {
    product_in_steps<Simd, kVectors, Strides::kKey, 1, kWidth, Start::kZero>(
        half - first, k, q, kWidth, scores, tile.d_words, nullptr, prefetch);
    if (half < end) {
      product_in_steps<Simd, 1, Strides::kKey, 1, kWidth, Start::kZero>(
          end - half, k + (half - first) * Strides::kKey, q + Simd::kLanes, kWidth,
          scores + (half - first) * kWidth + Simd::kLanes, tile.d_words, nullptr, prefetch);
    }
    if (tile.cap > 0) cap_scores(tile, scores, (end - first) * kWidth);
    if (masked) mask_scores<Simd, kVectors>(tile, key_tile, panel, first, end);
    find_top<Simd, kVectors>(tile, panel, end - first);
  } else {
    for (int v = 0; v < kVectors; ++v) {
      Simd::store(tile.top + v * Simd::kLanes,
                  Simd::load(tile.maximum + panel * kPanelWidth<Simd> + v * Simd::kLanes));
    }
    product_in_steps<Simd, kVectors, Strides::kKey, 1, kWidth, Start::kZero, true>(
        end - first, k, q, kWidth, scores, tile.d_words, nullptr, prefetch, tile.top);
  }
  const bool moved = softmax_key_tile<Simd, kVectors>(tile, panel, end - first);
  const Word* v = tile.v + first / kGrain * Strides::kValue;
  const Word* p = reinterpret_cast<const Word*>(scores);
  float* o = tile.o + int64_t{panel} * tile.e * kPanelWidth<Simd>;
  const int words = (half - first) / kGrain;
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
  if (half < end) {
    product_in_steps<Simd, 1, 1, Strides::kValue, kWidth, Start::kAdd>(
        tile.e, v + words * Strides::kValue, p + words * kWidth + Simd::kLanes, kWidth,
        o + Simd::kLanes, (end - half) / kGrain, nullptr, prefetch);
  }
  if (key_tile.not_finite != 0) {
    add_apart<Simd, Number, kVectors>(tile, key_tile, panel, first, end);
  }
}

/// Computes all panels with all key tiles. Q is packed while the first key tile is on its way from
/// memory.
template <class Simd, class Number, class Strides>
void attend_all(const ForwardItem& item, int64_t group, ForwardTile<Simd>& tile) {
  const int64_t low = tile.panel_keys[0].some_low;
  const int64_t high = tile.panel_keys[tile.panels - 1].some_high;
  const int d = static_cast<int>(item.shape->head_dim_qk);
  const int steps = static_cast<int>(round_up(kTileKeys, Simd::kProductRows) +
                                     round_up(tile.e, Simd::kProductRows)) /
                    Simd::kProductRows;
  Prefetch prefetch;
  KeyTile key_tiles[2];
  int64_t hint = 0;
  bool more = find_key_tile<Number>(item, low < 0 ? 0 : low, high, &hint, key_tiles[0]);
  if (!more) return;
  const KeyFragment& last = item.task->keys.data()[item.task->keys.size() - 1];
  const int64_t keys_end = last.position + last.tokens;
  const int first = key_tiles[0].first;
  fetch_rows(key_tiles[0].k_rows + first, key_tiles[0].end - first, d * sizeof(Number));
  fetch_rows(key_tiles[0].v_rows + first, key_tiles[0].end - first, tile.e * sizeof(Number));
  pack_queries<Simd, Number>(item, group, tile);
  for (int current = 0; more; current = 1 - current) {
    KeyTile& key_tile = key_tiles[current];
    KeyTile& next = key_tiles[1 - current];
    pack_keys<Simd, Number, Strides>(d, key_tile, tile);
    more = find_key_tile<Number>(item, key_tile.position + kTileKeys, high, &hint, next);
    const PanelsLeft left = panels_left(tile, key_tile.position, keys_end);
    prefetch.start(more ? &next : nullptr, d * int64_t{sizeof(Number)},
                   tile.e * int64_t{sizeof(Number)}, left.here > 0 ? left.here * steps : 1);
    if (item.next != nullptr) {
      prefetch.start_queries<Number>(*item.next, group, left.all * steps);
    }
    for (int p = 0; p < tile.panels; ++p) {
      if (panel_lanes(tile, p) <= Simd::kLanes) {
        add_key_tile<Simd, Number, Strides, 1>(tile, key_tile, p, prefetch);
      } else {
        add_key_tile<Simd, Number, Strides, Simd::kProductVectors>(tile, key_tile, p, prefetch);
      }
    }
  }
}

/// Computes LSE of every lane, and puts into `sum` the number that O must be multiplied by. A row
/// that sees no key gets -infinity and 0.
template <class Simd>
void set_lse(ForwardTile<Simd>& tile) {
  constexpr double kLn2 = 0.6931471805599453;
  const int lanes = tile.panels * kPanelWidth<Simd>;
  for (int i = 0; i < lanes; ++i) {
    // The largest score is scaled by the scale that is not rounded to fp32, because backward
    // subtracts LSE from such scores. If scores were measured from a rounded base (base_of), its
    // rounding is added.
    const double maximum = tile.maximum[i];
    const float base = tile.maximum[i] * tile.scale_log2;
    const double rounding = Simd::kPairs ? base - maximum * tile.scale_log2 : 0;
    tile.lse[i] =
        static_cast<float>(maximum * tile.scale + rounding * kLn2 + natural_log(tile.sum[i]));
  }
  for (int i = 0; i < lanes; ++i) {
    const float sum = tile.sum[i];
    const float inverse = 1 / sum;
    tile.lse[i] = sum == 0 ? -__builtin_inff() : tile.lse[i];
    tile.sum[i] = sum == 0 ? 0 : inverse;
  }
}

/// Writes O = sum / row sum, as rows of `item.o_type`, and LSE.
template <class Simd, int kVectors>
void finish_panel(const ForwardItem& item, int64_t group, ForwardTile<Simd>& tile, int panel) {
  using Vector = typename Simd::Vector;
  constexpr int kLanes = Simd::kLanes;
  constexpr int kWidth = kVectors * kLanes;
  const int base = panel * kPanelWidth<Simd>;
  const int lanes = panel_lanes(tile, panel);
  const bool narrow = item.o_type == ScalarType::kBFloat16;
  const Rows& out = item.task->o;
  const Rows& lse = item.task->lse;
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
        square[i] = square[i] * factor + Simd::zero();
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

/// Sets the scale and the cap of scores.
template <class Simd>
void set_scale(const Shape& shape, ForwardTile<Simd>& tile) {
  constexpr double kLog2E = 1.4426950408889634;
  const double scale = shape.softmax_scale < 0 ? -shape.softmax_scale : shape.softmax_scale;
  if (shape.softcap > 0) {
    tile.cap = static_cast<float>(shape.softcap);
    tile.cap_scale = static_cast<float>(scale / shape.softcap);
  }
  tile.scale = shape.softcap > 0 ? 1 : scale;
  tile.scale_log2 = static_cast<float>(tile.scale * kLog2E);
  if (tile.scale_log2 < kLeastScale) tile.scale_log2 = kLeastScale;
}

/// Bytes of scratch memory that forward_item needs: the ForwardTile, and words that suffice for all
/// strides.
template <class Simd>
size_t forward_scratch_bytes(const Shape& shape) {
  const int64_t d_words = row_words<Simd>(static_cast<int>(shape.head_dim_qk));
  const int64_t words = kTileRows * (d_words + shape.head_dim_v) + 2 * kTileKeys * kLongStride;
  return round_up(sizeof(ForwardTile<Simd>), 64) + words * sizeof(Word);
}

/// Computes the item of a tile that start_tile has made.
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

/// Makes the state of the tile at the start of `scratch`; the arrays that it points to lie behind.
template <class Simd>
ForwardTile<Simd>& start_tile(const ForwardItem& item, std::byte* scratch) {
  const Shape& shape = *item.shape;
  auto& tile = *new (scratch) ForwardTile<Simd>;
  tile.rows = item.row_end - item.row_begin;
  tile.panels = static_cast<int>(round_up(tile.rows, kPanelWidth<Simd>) / kPanelWidth<Simd>);
  tile.d_words = row_words<Simd>(static_cast<int>(shape.head_dim_qk));
  tile.e = static_cast<int>(shape.head_dim_v);
  tile.k = reinterpret_cast<Word*>(scratch + round_up(sizeof(ForwardTile<Simd>), 64));
  tile.v = tile.k + kTileKeys * kLongStride;
  tile.q = tile.v + kTileKeys * kLongStride;
  tile.o = reinterpret_cast<float*>(tile.q + kTileRows * tile.d_words);
  set_scale(shape, tile);
  return tile;
}

/// Computes one item.
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
