#pragma once
// The vector operations of the kernel templates (product.h, forward.h, backward.h) in AVX2 with
// FMA, with 8 lanes. They are the same as those of simd_avx512.h. Only for sources that are
// compiled for AVX2; everything here is local to its source.

#include <immintrin.h>

#include <cstdint>

#include "distca/kernels/cpu/word.h"

namespace distca::kernels {
namespace {

/// Operations on vectors of fp32 numbers, besides + - * / of the compiler.
struct Avx2 {
  using Vector = __m256;
  using Integers = __m256i;
  /// Has all ones in the lanes that are OUT, because AVX2 compares integers for greater only.
  struct Mask {
    __m256i out;
  };
  static constexpr int kLanes = 8;
  // A product needs 12 accumulators, 2 operands and a broadcast: 15 of 16 registers.
  static constexpr int kProductRows = 6;
  static constexpr int kProductVectors = 2;

  static Vector zero() { return _mm256_setzero_ps(); }
  static Vector set(float x) { return _mm256_set1_ps(x); }
  // Numbers or words.
  static Vector load(const void* p) { return _mm256_loadu_ps(static_cast<const float*>(p)); }
  static void store(void* p, Vector x) { _mm256_storeu_ps(static_cast<float*>(p), x); }
  /// Returns `b` if either is NaN.
  static Vector max(Vector a, Vector b) { return _mm256_max_ps(a, b); }
  static Vector min(Vector a, Vector b) { return _mm256_min_ps(a, b); }
  /// Returns a * b + c, rounded once.
  static Vector multiply_add(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
  /// Returns x - floor(x), and 0 for -infinity and below -127, where scale_by_power gives 0.
  static Vector fraction(Vector x) {
    const Vector inside = from_least_power(x);
    return inside - _mm256_floor_ps(inside);
  }
  /// Returns x * 2^floor(n) for n < 128, and 0 if 2^floor(n) is not a normal number.
  static Vector scale_by_power(Vector x, Vector n) {
    const Integers power = _mm256_cvtps_epi32(_mm256_floor_ps(from_least_power(n)));
    const Integers biased = _mm256_add_epi32(power, set_integer(127));
    return x * _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
  }

  /// Loads the first `count` words, 1 to kLanes, and zeros for the rest. Reads no other memory.
  static Vector load_first(const void* p, int count) {
    if (count == kLanes) return load(p);
    return _mm256_maskload_ps(static_cast<const float*>(p), first_lanes(count));
  }
  /// Stores the first `count` numbers.
  static void store_first(float* p, int count, Vector x) {
    if (count == kLanes) return store(p, x);
    _mm256_maskstore_ps(p, first_lanes(count), x);
  }
  /// Load and store likewise, but numbers that are bf16 in memory. Narrowing rounds to nearest,
  /// ties to even; NaN stays NaN.
  static Vector widen_first(const uint16_t* p, int count) {
    uint16_t first[kLanes] = {};
    if (count < kLanes) {
      for (int i = 0; i < count; ++i) first[i] = p[i];
      p = first;
    }
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  }
  static void narrow_first(uint16_t* p, int count, Vector x) {
    const Integers bits = _mm256_castps_si256(x);
    const Integers odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), set_integer(1));
    const Integers nearest = _mm256_add_epi32(bits, _mm256_add_epi32(odd, set_integer(0x7FFF)));
    const Integers quiet = _mm256_or_si256(bits, set_integer(0x00400000));
    const Integers rounded = _mm256_castps_si256(
        _mm256_blendv_ps(_mm256_castsi256_ps(nearest), _mm256_castsi256_ps(quiet),
                         _mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
    const Integers high = _mm256_srli_epi32(rounded, 16);
    const Integers packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
    uint16_t all[kLanes];
    _mm_storeu_si128(reinterpret_cast<__m128i*>(count < kLanes ? all : p),
                     _mm256_castsi256_si128(packed));
    if (count < kLanes) {
      for (int i = 0; i < count; ++i) p[i] = all[i];
    }
  }
  /// Transposes a kLanes x kLanes square of words.
  static void transpose(Vector (&x)[kLanes]) {
    Vector y[kLanes];
#pragma GCC unroll 8
    for (int i = 0; i < kLanes; i += 2) {
      y[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
      y[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kLanes; i += 4) {
#pragma GCC unroll 2
      for (int j = 0; j < 2; ++j) {
        const __m256d a = _mm256_castps_pd(y[i + j]);
        const __m256d b = _mm256_castps_pd(y[i + j + 2]);
        x[i + 2 * j] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b));
        x[i + 2 * j + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));
      }
    }
    // Half h of x[4 g + c] holds column 4 h + c of rows 4 g .. 4 g + 3.
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      y[c] = _mm256_permute2f128_ps(x[c], x[4 + c], 0x20);
      y[4 + c] = _mm256_permute2f128_ps(x[c], x[4 + c], 0x31);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kLanes; ++i) x[i] = y[i];
  }

  static Integers set_integer(int32_t x) { return _mm256_set1_epi32(x); }
  static Integers load_integers(const int32_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  /// The lanes where a <= b.
  static Mask at_most(Integers a, Integers b) { return {_mm256_cmpgt_epi32(a, b)}; }
  /// The lanes where a < b; a lane where either is NaN is not one of them.
  static Mask below(Vector a, Vector b) {
    return {_mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_NLT_UQ))};
  }
  static bool any(Mask mask) { return _mm256_movemask_ps(_mm256_castsi256_ps(mask.out)) != 0xFF; }
  static Mask both(Mask a, Mask b) { return {_mm256_or_si256(a.out, b.out)}; }
  static Vector select(Mask mask, Vector yes, Vector no) {
    return _mm256_blendv_ps(yes, no, _mm256_castsi256_ps(mask.out));
  }

 protected:
  /// Returns x, or -127 if x is less, because 2^-127 is not a normal number any more and counts as
  /// 0. NaN stays NaN.
  static Vector from_least_power(Vector x) { return max(set(-127), x); }
  static Integers first_lanes(int count) {
    const Integers lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(set_integer(count), lane);
  }
};

/// The operands of a product in fp32, where a word is one number.
struct Avx2Fp32 : Avx2 {
  static constexpr bool kPairs = false;
  /// Returns accumulator + broadcast(*a) * b.
  static Vector multiply_word(const Word* a, Vector b, Vector accumulator) {
    return _mm256_fmadd_ps(_mm256_broadcast_ss(reinterpret_cast<const float*>(a)), b, accumulator);
  }
};

}  // namespace
}  // namespace distca::kernels
