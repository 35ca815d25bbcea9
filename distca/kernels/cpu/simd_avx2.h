#pragma once
// AVX2 with FMA for the kernel templates (product.h, forward.h, backward.h): 8 lanes. The
// operations are those of simd_avx512.h. Only for units compiled for AVX2: everything here is local
// to the unit.

#include <immintrin.h>

#include <cstdint>

#include "distca/kernels/cpu/word.h"

namespace distca::kernels {
namespace {

struct Avx2 {
  using Vector = __m256;
  using Integers = __m256i;
  /// All ones in the lanes that are OUT: AVX2 compares for greater only.
  struct Mask {
    __m256i out;
  };
  static constexpr int kLanes = 8;
  // One product: 12 accumulators, 2 operands and a broadcast in 16 registers.
  static constexpr int kProductRows = 6;
  static constexpr int kProductVectors = 2;

  static Vector zero() { return _mm256_setzero_ps(); }
  static Vector set(float x) { return _mm256_set1_ps(x); }
  static Vector load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Vector x) { _mm256_storeu_ps(p, x); }
  static Vector add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
  static Vector subtract(Vector a, Vector b) { return _mm256_sub_ps(a, b); }
  static Vector multiply(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
  static Vector divide(Vector a, Vector b) { return _mm256_div_ps(a, b); }
  static Vector max(Vector a, Vector b) { return _mm256_max_ps(a, b); }
  static Vector min(Vector a, Vector b) { return _mm256_min_ps(a, b); }
  /// a * b + c, rounded once.
  static Vector multiply_add(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
  /// To the nearest integer, halves to even.
  static Vector round(Vector x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  /// x * 2^n for an integer n; 0 where 2^n is no normal number, infinity from 2^128.
  static Vector scale_by_power(Vector x, Vector n) {
    const Vector exponent = min(max(n, set(-127)), set(128));
    const Integers biased = _mm256_add_epi32(_mm256_cvtps_epi32(exponent), set_integer(127));
    return multiply(x, _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23)));
  }

  static Integers set_integer(int32_t x) { return _mm256_set1_epi32(x); }
  static Integers load_integers(const int32_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  /// Lanes where a <= b.
  static Mask at_most(Integers a, Integers b) { return {_mm256_cmpgt_epi32(a, b)}; }
  static Mask both(Mask a, Mask b) { return {_mm256_or_si256(a.out, b.out)}; }
  static Vector select(Mask mask, Vector yes, Vector no) {
    return _mm256_blendv_ps(yes, no, _mm256_castsi256_ps(mask.out));
  }
};

/// Operands of a product in fp32: a word is one number.
struct Avx2Fp32 : Avx2 {
  static constexpr bool kPairs = false;
  /// accumulator + broadcast(*a) * b.
  static Vector multiply_word(const Word* a, Vector b, Vector accumulator) {
    return _mm256_fmadd_ps(_mm256_broadcast_ss(reinterpret_cast<const float*>(a)), b, accumulator);
  }
  static Vector load_words(const Word* p) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  }
};

}  // namespace
}  // namespace distca::kernels
