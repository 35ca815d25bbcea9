#pragma once
// Vectors of 16 bytes as the compiler makes them (NEON on Arm, SSE2 on x86) for the kernel
// templates (product.h, forward.h, backward.h): 4 lanes. The operations are those of
// simd_avx512.h. Everything here is local to the unit.

#include <cstdint>

#include "distca/kernels/cpu/word.h"

namespace distca::kernels {
namespace {

struct Portable {
  typedef float Vector __attribute__((vector_size(16)));
  typedef int32_t Integers __attribute__((vector_size(16)));
  using Mask = Integers;  // all ones in the lanes that are in
  static constexpr int kLanes = 4;
  // One product: as many accumulators as the registers hold beside the operands.
#ifdef __aarch64__
  static constexpr int kProductRows = 12;
#else
  static constexpr int kProductRows = 6;
#endif
  static constexpr int kProductVectors = 2;

  static Vector zero() { return set(0); }
  static Vector set(float x) { return Vector{x, x, x, x}; }
  static Vector load(const float* p) { return *reinterpret_cast<const UnalignedVector*>(p); }
  static void store(float* p, Vector x) { *reinterpret_cast<UnalignedVector*>(p) = x; }
  static Vector add(Vector a, Vector b) { return a + b; }
  static Vector subtract(Vector a, Vector b) { return a - b; }
  static Vector multiply(Vector a, Vector b) { return a * b; }
  static Vector divide(Vector a, Vector b) { return a / b; }
  static Vector max(Vector a, Vector b) { return a > b ? a : b; }
  static Vector min(Vector a, Vector b) { return a < b ? a : b; }
  /// a * b + c, rounded once where the machine does that as fast as twice.
  static Vector multiply_add(Vector a, Vector b, Vector c) {
#ifdef __FP_FAST_FMAF
    Vector sum;
    for (int i = 0; i < kLanes; ++i) sum[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return sum;
#else
    return a * b + c;
#endif
  }
  /// To the nearest integer, halves to even.
  static Vector round(Vector x) {
    // From 2^23 on every number is an integer; below, adding 2^23 away from 0 rounds.
    const Integers sign = reinterpret_cast<Integers>(x) & INT32_MIN;
    const Vector shift = reinterpret_cast<Vector>(sign | reinterpret_cast<Integers>(set(0x1p23F)));
    const Vector rounded = x + shift - shift;
    const Mask small = (x < set(0x1p23F)) & (x > set(-0x1p23F));
    return small ? rounded : x;
  }
  /// x * 2^n for an integer n; 0 where 2^n is no normal number, infinity from 2^128.
  static Vector scale_by_power(Vector x, Vector n) {
    const Vector exponent = min(max(n, set(-127)), set(128));
    const Integers biased = __builtin_convertvector(exponent, Integers) + 127;
    return x * reinterpret_cast<Vector>(biased << 23);
  }

  static Integers set_integer(int32_t x) { return Integers{x, x, x, x}; }
  static Integers load_integers(const int32_t* p) {
    return *reinterpret_cast<const UnalignedIntegers*>(p);
  }
  /// Lanes where a <= b.
  static Mask at_most(Integers a, Integers b) { return a <= b; }
  static Mask both(Mask a, Mask b) { return a & b; }
  static Vector select(Mask mask, Vector yes, Vector no) { return mask ? yes : no; }

 private:
  typedef float UnalignedVector __attribute__((vector_size(16), aligned(4), may_alias));
  typedef int32_t UnalignedIntegers __attribute__((vector_size(16), aligned(4), may_alias));
};

/// Operands of a product in fp32: a word is one number.
struct PortableFp32 : Portable {
  static constexpr bool kPairs = false;
  /// accumulator + broadcast(*a) * b.
  static Vector multiply_word(const Word* a, Vector b, Vector accumulator) {
    return multiply_add(set(*reinterpret_cast<const float*>(a)), b, accumulator);
  }
  static Vector load_words(const Word* p) { return load(reinterpret_cast<const float*>(p)); }
};

}  // namespace
}  // namespace distca::kernels
