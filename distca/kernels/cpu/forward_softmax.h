#pragma once
// Turns the scores of one panel and key tile into probabilities (forward.h). Only for sources that
// are compiled for one instruction set.

#include "distca/kernels/cpu/exponential.h"
#include "distca/kernels/cpu/forward_tile.h"

namespace distca::kernels {
namespace {

/// Computes s = cap * tanh(score * softmax_scale / cap), in place.
template <class Simd>
void cap_scores(const ForwardTile<Simd>& tile, float* scores, int numbers) {
  const auto scale = Simd::set(tile.cap_scale);
  const auto cap = Simd::set(tile.cap);
  for (int i = 0; i < numbers; i += Simd::kLanes) {
    const auto x = Simd::load(scores + i) * scale;
    Simd::store(scores + i, cap * tanh<Simd>(x));
  }
}

/// Sets the limits of a panel within the key tile at `position`, as one number for each lane.
template <class Simd>
void set_tile_limits(ForwardTile<Simd>& tile, int panel, int64_t position) {
  const int64_t* low = tile.low + panel * kPanelWidth<Simd>;
  const int64_t* high = tile.high + panel * kPanelWidth<Simd>;
  for (int i = 0; i < kPanelWidth<Simd>; ++i) {
    const int64_t first = low[i] - position;
    const int64_t last = high[i] - position;
    tile.first_key[i] = static_cast<int32_t>(first < 0 ? 0 : first > 64 ? 64 : first);
    tile.last_key[i] = static_cast<int32_t>(last < -1 ? -1 : last > 64 ? 64 : last);
  }
}

/// Sets scores that a lane does not see to -infinity, which is probability 0 for every maximum.
template <class Simd, int kVectors>
void mask_scores(ForwardTile<Simd>& tile, const KeyTile& key_tile, int panel, int first, int end) {
  constexpr int kLanes = Simd::kLanes;
  set_tile_limits(tile, panel, key_tile.position);
  const PanelKeys& keys = tile.panel_keys[panel];
  const auto hidden = Simd::set(-__builtin_inff());
  typename Simd::Integers low[kVectors];
  typename Simd::Integers high[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    low[v] = Simd::load_integers(tile.first_key + v * kLanes);
    high[v] = Simd::load_integers(tile.last_key + v * kLanes);
  }
  for (int j = first; j < end; ++j) {
    const bool all =
        keys.all_low <= key_tile.position + j && key_tile.position + j <= keys.all_high;
    if (all && key_tile.index[j] == j) continue;
    const auto key = Simd::set_integer(key_tile.index[j]);
    float* scores = tile.scores + (j - first) * kVectors * kLanes;
    for (int v = 0; v < kVectors; ++v) {
      const auto visible = Simd::both(Simd::at_most(low[v], key), Simd::at_most(key, high[v]));
      Simd::store(scores + v * kLanes,
                  Simd::select(visible, Simd::load(scores + v * kLanes), hidden));
    }
  }
}

/// Returns the base that is subtracted from a lane's scores. In fp32, it is the maximum itself,
/// which is subtracted before the scale is applied, so that the largest score's probability is
/// exactly 1. With bf16 pairs, it is the maximum as an exponent of 2, rounded. Probabilities,
/// factors and LSE all use the rounded base, so its rounding cancels. That takes one operation less
/// for each score where products are fastest, and is as precise as results rounded to bf16.
template <class Simd>
inline typename Simd::Vector base_of(typename Simd::Vector maximum, typename Simd::Vector scale) {
  if constexpr (!Simd::kPairs) return maximum;
  return Simd::max(Simd::set(kNoScore), maximum * scale);
}

/// A score as an exponent of 2 above the base, whose negative is `minus_base`.
template <class Simd>
inline __attribute__((always_inline)) typename Simd::Vector exponent_of(
    typename Simd::Vector score, typename Simd::Vector scale, typename Simd::Vector minus_base) {
  if constexpr (!Simd::kPairs) return (score + minus_base) * scale;
  return Simd::multiply_add(score, scale, minus_base);
}

/// Turns the scores of keys [j, j + kKeys) into probabilities, as words, and adds them to `part`.
template <class Simd, int kVectors, int kKeys>
inline __attribute__((always_inline)) void exponentials(float* scores, int j,
                                                        typename Simd::Vector scale,
                                                        const typename Simd::Vector* minus_base,
                                                        typename Simd::Vector* part) {
  using Vector = typename Simd::Vector;
  constexpr int kLanes = Simd::kLanes;
  constexpr int kWidth = kVectors * kLanes;
  Vector p[kKeys * kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kKeys * kVectors; ++i) {
    const Vector score = Simd::load(scores + j * kWidth + i * kLanes);
    p[i] = exponent_of<Simd>(score, scale, minus_base[i % kVectors]);
  }
  exp2_all<Simd, Simd::kPairs>(p);
#pragma GCC unroll 16
  for (int i = 0; i < kKeys * kVectors; ++i) {
    part[i % kVectors] = part[i % kVectors] + p[i];
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

/// Writes the panel's maximum so far, the scores of `keys` new keys included, to `tile.top`.
template <class Simd, int kVectors>
void find_top(ForwardTile<Simd>& tile, int panel, int keys) {
  using Vector = typename Simd::Vector;
  constexpr int kLanes = Simd::kLanes;
  constexpr int kWidth = kVectors * kLanes;
  const float* scores = tile.scores;
  const float* maximum = tile.maximum + panel * kPanelWidth<Simd>;
  // There are several maxima, so that they do not wait for each other.
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
  for (int v = 0; v < kVectors; ++v) {
    Vector top = chain[v];
    for (int i = 1; i < kChains; ++i) top = Simd::max(chain[i * kVectors + v], top);
    Simd::store(tile.top + v * kLanes, top);
  }
}

/// Turns the scores of `keys` keys into probabilities under the new maximum `tile.top`, in place.
/// Updates the panel's maximum and sum, and sets `factor`, by which earlier sums must be
/// multiplied. Returns whether the maximum of any lane has grown; if none has, all factors are 1.
template <class Simd, int kVectors>
bool softmax_key_tile(ForwardTile<Simd>& tile, int panel, int keys) {
  using Vector = typename Simd::Vector;
  constexpr int kLanes = Simd::kLanes;
  constexpr int kGrain = Simd::kPairs ? 2 : 1;
  constexpr int kStepKeys = 2;
  float* scores = tile.scores;
  float* maximum = tile.maximum + panel * kPanelWidth<Simd>;
  float* sum = tile.sum + panel * kPanelWidth<Simd>;
  const Vector scale = Simd::set(tile.scale_log2);
  Vector top[kVectors];
  for (int v = 0; v < kVectors; ++v) top[v] = Simd::load(tile.top + v * kLanes);
  bool moved = false;
  Vector minus_base[kVectors];
  Vector part[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    const Vector before = Simd::load(maximum + v * kLanes);
    const Vector base = base_of<Simd>(top[v], scale);
    moved = moved || Simd::any(Simd::below(before, top[v]));
    Simd::store(maximum + v * kLanes, top[v]);
    const Vector difference = base_of<Simd>(before, scale) - base;
    const Vector rise = Simd::kPairs ? difference : difference * scale;
    Simd::store(tile.factor + v * kLanes, exp2<Simd, false>(rise));
    minus_base[v] = Simd::zero() - base;
    part[v] = Simd::zero();
  }
  int j = 0;
  for (; j + kStepKeys <= keys; j += kStepKeys) {
    exponentials<Simd, kVectors, kStepKeys>(scores, j, scale, minus_base, part);
  }
  for (; j < keys; j += kGrain) {
    exponentials<Simd, kVectors, kGrain>(scores, j, scale, minus_base, part);
  }
  for (int v = 0; v < kVectors; ++v) {
    const Vector factor = Simd::load(tile.factor + v * kLanes);
    const Vector before = Simd::load(sum + v * kLanes);
    Simd::store(sum + v * kLanes, Simd::multiply_add(before, factor, part[v]));
  }
  return moved;
}

}  // namespace
}  // namespace distca::kernels
