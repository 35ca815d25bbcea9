#pragma once
// The vector operations of the kernel templates (product.h, forward.h, backward.h) for vectors of
// 16 bytes, as the compiler makes them (NEON on Arm, SSE2 on x86), with 4 lanes. They are the same
// as those of simd_avx512.h. Everything here is local to its source.

#include <cstdint>

#include "distca/kernels/cpu/word.h"

namespace distca::kernels {
namespace {

/// Operations on vectors of fp32 numbers, besides + - * / of the compiler.
struct Portable {
  typedef float Vector __attribute__((vector_size(16)));
  typedef int32_t Integers __attribute__((vector_size(16)));
  using Mask = Integers;  // all ones in the lanes that are in
  static constexpr int kLanes = 4;
  // A product has as many accumulators as fit the registers together with the operands.
#ifdef __aarch64__
  static constexpr int kProductRows = 12;
#else
  static constexpr int kProductRows = 6;
#endif
  static constexpr int kProductVectors = 2;

  static Vector zero() { return set(0); }
  static Vector set(float x) { return Vector{x, x, x, x}; }
  // Numbers or words.
  static Vector load(const void* p) { return *static_cast<const UnalignedVector*>(p); }
  static void store(void* p, Vector x) { *static_cast<UnalignedVector*>(p) = x; }
  /// Returns `b` if either is NaN.
  static Vector max(Vector a, Vector b) { return a > b ? a : b; }
  static Vector min(Vector a, Vector b) { return a < b ? a : b; }
  /// Returns a * b + c, rounded once if the machine does that as fast as rounding twice.
  static Vector multiply_add(Vector a, Vector b, Vector c) {
#ifdef __FP_FAST_FMAF
    Vector sum;
    for (int i = 0; i < kLanes; ++i) sum[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return sum;
#else
    return a * b + c;
#endif
  }
  /// Returns x - floor(x), and 0 for infinities and below -127, where scale_by_power gives 0.
  static Vector fraction(Vector x) {
    const Vector inside = clamp_power(x);
    return inside - __builtin_convertvector(floor_small(inside), Vector);
  }
  /// Returns x * 2^floor(n). It is 0 if 2^floor(n) is not a normal number, and infinity from 2^128
  /// on.
  static Vector scale_by_power(Vector x, Vector n) {
    const Integers biased = floor_small(clamp_power(n)) + 127;
    return x * reinterpret_cast<Vector>(biased << 23);
  }

  /// Loads the first `count` words, 1 to kLanes, and zeros for the rest. Reads no other memory.
  static Vector load_first(const void* p, int count) {
    if (count == kLanes) return load(p);
    Integers words{};
    for (int i = 0; i < count; ++i) words[i] = static_cast<int32_t>(static_cast<const Word*>(p)[i]);
    return reinterpret_cast<Vector>(words);
  }
  /// Stores the first `count` numbers.
  static void store_first(float* p, int count, Vector x) {
    if (count == kLanes) return store(p, x);
    for (int i = 0; i < count; ++i) p[i] = x[i];
  }
  /// Load and store likewise, but numbers that are bf16 in memory. Narrowing rounds to nearest,
  /// ties to even; NaN stays NaN.
  static Vector widen_first(const uint16_t* p, int count) {
    Halves first{};
    if (count == kLanes) {
      first = *reinterpret_cast<const UnalignedHalves*>(p);
    } else {
      for (int i = 0; i < count; ++i) first[i] = p[i];
    }
    return reinterpret_cast<Vector>(__builtin_convertvector(first, Integers) << 16);
  }
  static void narrow_first(uint16_t* p, int count, Vector x) {
    const auto bits = reinterpret_cast<Unsigned>(x);
    const Unsigned nearest = bits + 0x7FFF + (bits >> 16 & 1);
    const Unsigned rounded = x == x ? nearest : bits | 0x00400000;
    const Halves high = __builtin_convertvector(rounded >> 16, Halves);
    if (count == kLanes) {
      *reinterpret_cast<UnalignedHalves*>(p) = high;
    } else {
      for (int i = 0; i < count; ++i) p[i] = high[i];
    }
  }
  /// Transposes a kLanes x kLanes square of words.
  static void transpose(Vector (&x)[kLanes]) {
    const Vector low01 = __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5);
    const Vector high01 = __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7);
    const Vector low23 = __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5);
    const Vector high23 = __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
    x[0] = __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
    x[1] = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
    x[2] = __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
    x[3] = __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
  }

  static Integers set_integer(int32_t x) { return Integers{x, x, x, x}; }
  static Integers load_integers(const int32_t* p) {
    return *reinterpret_cast<const UnalignedIntegers*>(p);
  }
  /// The lanes where a <= b.
  static Mask at_most(Integers a, Integers b) { return a <= b; }
  /// The lanes where a < b; a lane where either is NaN is not one of them.
  static Mask below(Vector a, Vector b) { return a < b; }
  static bool any(Mask mask) { return (mask[0] | mask[1] | mask[2] | mask[3]) != 0; }
  static Mask both(Mask a, Mask b) { return a & b; }
  static Vector select(Mask mask, Vector yes, Vector no) { return mask ? yes : no; }

 protected:
  typedef float UnalignedVector __attribute__((vector_size(16), aligned(4), may_alias));
  typedef int32_t UnalignedIntegers __attribute__((vector_size(16), aligned(4), may_alias));
  typedef uint32_t Unsigned __attribute__((vector_size(16)));
  typedef uint16_t Halves __attribute__((vector_size(8)));
  typedef uint16_t UnalignedHalves __attribute__((vector_size(8), aligned(2), may_alias));

  /// Returns x clamped to [-127, 128], in which floor(x) is the exponent of an fp32 number, 0 and
  /// infinity included. NaN stays NaN.
  static Vector clamp_power(Vector x) { return min(set(128), max(set(-127), x)); }
  /// Returns floor(x) for |x| < 2^31.
  static Integers floor_small(Vector x) {
    const Integers whole = __builtin_convertvector(x, Integers);  // towards 0
    return whole + (__builtin_convertvector(whole, Vector) > x);  // "greater" is -1
  }
};

/// The operands of a product in fp32, where a word is one number.
struct PortableFp32 : Portable {
  static constexpr bool kPairs = false;
  /// Returns accumulator + broadcast(*a) * b.
  static Vector multiply_word(const Word* a, Vector b, Vector accumulator) {
    return multiply_add(set(*reinterpret_cast<const float*>(a)), b, accumulator);
  }
};

}  // namespace
}  // namespace distca::kernels
