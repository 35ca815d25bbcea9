#pragma once
// The vector operations of the kernel templates (product.h, forward.h, backward.h) in AVX-512, with
// 16 lanes. simd_avx2.h and simd_portable.h have the same operations. Only for sources that are
// compiled for AVX-512; everything here is local to its source.

#include <immintrin.h>

#include <cstdint>

#include "distca/kernels/cpu/word.h"

namespace distca::kernels {
namespace {

/// Operations on vectors of fp32 numbers, besides + - * / of the compiler.
struct Avx512 {
  using Vector = __m512;
  using Integers = __m512i;
  using Mask = __mmask16;
  static constexpr int kLanes = 16;
  // A product has as many accumulators as fit the 32 registers together with the operands.
  static constexpr int kProductRows = 13;
  static constexpr int kProductVectors = 2;

  static Vector zero() { return _mm512_setzero_ps(); }
  static Vector set(float x) { return _mm512_set1_ps(x); }
  // Numbers or words.
  static Vector load(const void* p) { return _mm512_loadu_ps(p); }
  static void store(void* p, Vector x) { _mm512_storeu_ps(p, x); }
  /// Returns `b` if either is NaN.
  static Vector max(Vector a, Vector b) { return _mm512_max_ps(a, b); }
  static Vector min(Vector a, Vector b) { return _mm512_min_ps(a, b); }
  /// Returns a * b + c, rounded once.
  static Vector multiply_add(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
  /// Returns x - floor(x) for x < 128, and 0 for -infinity.
  static Vector fraction(Vector x) {
    return _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  }
  /// Returns x * 2^floor(n) for n < 128. It underflows to denormal numbers or 0; for n = -infinity
  /// it is 0.
  static Vector scale_by_power(Vector x, Vector n) { return _mm512_scalef_ps(x, n); }

  /// Loads the first `count` words, 1 to kLanes, and zeros for the rest. Reads no other memory.
  static Vector load_first(const void* p, int count) {
    return _mm512_maskz_loadu_ps(first_lanes(count), p);
  }
  /// Stores the first `count` numbers.
  static void store_first(float* p, int count, Vector x) {
    _mm512_mask_storeu_ps(p, first_lanes(count), x);
  }
  /// Load and store likewise, but numbers that are bf16 in memory. Narrowing rounds to nearest,
  /// ties to even; NaN stays NaN.
  static Vector widen_first(const uint16_t* p, int count) {
    const __m256i half = _mm256_maskz_loadu_epi16(first_lanes(count), p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
  static void narrow_first(uint16_t* p, int count, Vector x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i nearest =
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i rounded = _mm512_mask_or_epi32(nearest, nan, bits, _mm512_set1_epi32(0x00400000));
    _mm256_mask_storeu_epi16(p, first_lanes(count),
                             _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
  }
  /// Transposes a kLanes x kLanes square of words.
  static void transpose(Vector (&x)[kLanes]) {
    Vector y[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; i += 2) {
      y[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
      y[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; i += 4) {
#pragma GCC unroll 2
      for (int j = 0; j < 2; ++j) {
        const __m512d a = _mm512_castps_pd(y[i + j]);
        const __m512d b = _mm512_castps_pd(y[i + j + 2]);
        x[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
        x[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
      }
    }
    // Quarter q of x[4 g + c] holds column 4 q + c of rows 4 g .. 4 g + 3.
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const Vector low02 = _mm512_shuffle_f32x4(x[c], x[4 + c], 0x88);
      const Vector low13 = _mm512_shuffle_f32x4(x[c], x[4 + c], 0xDD);
      const Vector high02 = _mm512_shuffle_f32x4(x[8 + c], x[12 + c], 0x88);
      const Vector high13 = _mm512_shuffle_f32x4(x[8 + c], x[12 + c], 0xDD);
      y[c] = _mm512_shuffle_f32x4(low02, high02, 0x88);
      y[8 + c] = _mm512_shuffle_f32x4(low02, high02, 0xDD);
      y[4 + c] = _mm512_shuffle_f32x4(low13, high13, 0x88);
      y[12 + c] = _mm512_shuffle_f32x4(low13, high13, 0xDD);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) x[i] = y[i];
  }

  static Integers set_integer(int32_t x) { return _mm512_set1_epi32(x); }
  static Integers load_integers(const int32_t* p) { return _mm512_loadu_si512(p); }
  /// The lanes where a <= b.
  static Mask at_most(Integers a, Integers b) { return _mm512_cmple_epi32_mask(a, b); }
  /// The lanes where a < b; a lane where either is NaN is not one of them.
  static Mask below(Vector a, Vector b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  static bool any(Mask mask) { return mask != 0; }
  static Mask both(Mask a, Mask b) { return a & b; }
  static Vector select(Mask mask, Vector yes, Vector no) {
    return _mm512_mask_blend_ps(mask, no, yes);
  }

 protected:
  static __mmask16 first_lanes(int count) { return static_cast<__mmask16>((1U << count) - 1); }
};

/// The operands of a product in fp32, where a word is one number.
struct Avx512Fp32 : Avx512 {
  static constexpr bool kPairs = false;
  /// Returns accumulator + broadcast(*a) * b.
  static Vector multiply_word(const Word* a, Vector b, Vector accumulator) {
    return _mm512_fmadd_ps(_mm512_set1_ps(*reinterpret_cast<const float*>(a)), b, accumulator);
  }
};

#ifdef __AVX512BF16__
/// The operands of a product in bf16, where a word is a pair of numbers that are neighbours along
/// the sum.
struct Avx512Bf16 : Avx512 {
  static constexpr bool kPairs = true;
  static Vector multiply_word(const Word* a, Vector b, Vector accumulator) {
    return _mm512_dpbf16_ps(accumulator, (__m512bh)_mm512_set1_epi32(static_cast<int32_t>(*a)),
                            (__m512bh)_mm512_castps_si512(b));
  }
  /// Words of two rows of fp32 numbers, rounded to bf16, with `first` in the low halves.
  static Vector pair(Vector first, Vector second) {
    const __m512i rounded = (__m512i)_mm512_cvtne2ps_pbh(second, first);  // first: low 16 numbers
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_castsi512_ps(_mm512_permutexvar_epi16(order, rounded));
  }
  /// Words of the first `count` numbers of two rows of bf16, and zeros for the rest.
  static Vector pair_first(const uint16_t* first, const uint16_t* second, int count) {
    const __mmask16 lanes = first_lanes(count);
    const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, first));
    const __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, second));
    return _mm512_castsi512_ps(_mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
  }
  /// Words of 32 numbers in order, rounded to bf16, with `first` as the lower 16.
  static Vector neighbours(Vector first, Vector second) {
    return _mm512_castsi512_ps((__m512i)_mm512_cvtne2ps_pbh(second, first));
  }
};
#endif

}  // namespace
}  // namespace distca::kernels
