#pragma once
// The one microkernel: C [m][lanes] = start + sum over k of A(m, k) * B [k][lanes].
//
// Lanes run over vectors; A is broadcast word by word, so it needs no packing beyond a fixed row
// stride. A(m, k) lies at a[m * kStrideM + k * kStrideK]: kStrideK = 1 reads A as it lies, kStrideM
// = 1 reads it transposed. Strides known at compile time leave one pointer in registers instead of
// thirteen. Sums run over k in ascending order, fused: the bits of a lane depend on its own column
// of B and on A only.

#include "distca/kernels/cpu/word.h"

namespace distca::kernels {
namespace {

enum class Start {
  kZero,    // C = A B
  kAdd,     // C += A B
  kRescale  // C = C * factor + A B, `factor` one number a lane
};

/// `top`: if kTop, its lanes become the maximum of themselves and of C's rows; NaN is passed over.
/// kRows x kVectors accumulators. kStrideC: between the rows of C; b_stride: between those of B.
template <class Simd, int kRows, int kVectors, int kStrideM, int kStrideK, int kStrideC,
          Start kStart, bool kTop>
inline __attribute__((always_inline)) void product_step(const Word* a, const Word* b, int b_stride,
                                                        float* c, int words, const float* factor,
                                                        float* top) {
  using Vector = typename Simd::Vector;
  constexpr int kLanes = Simd::kLanes;
  Vector sum[kRows][kVectors];
#pragma GCC unroll 32
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      if constexpr (kStart == Start::kZero) {
        sum[m][v] = Simd::zero();
      } else {
        sum[m][v] = Simd::load(c + m * kStrideC + v * kLanes);
        if constexpr (kStart == Start::kRescale) {
          sum[m][v] = Simd::multiply(sum[m][v], Simd::load(factor + v * kLanes));
        }
      }
    }
  }
#pragma GCC unroll 2
  for (int k = 0; k < words; ++k) {
    Vector operand[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) operand[v] = Simd::load_words(b + v * kLanes);
#pragma GCC unroll 32
    for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        sum[m][v] = Simd::multiply_word(a + m * kStrideM, operand[v], sum[m][v]);
      }
    }
    a += kStrideK;
    b += b_stride;
  }
#pragma GCC unroll 32
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) Simd::store(c + m * kStrideC + v * kLanes, sum[m][v]);
  }
  if constexpr (kTop) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Vector most = Simd::load(top + v * kLanes);
#pragma GCC unroll 32
      for (int m = 0; m < kRows; ++m) most = Simd::max(sum[m][v], most);
      Simd::store(top + v * kLanes, most);
    }
  }
}

/// The same for 1 to kProductRows rows, known at run time.
template <class Simd, int kRows, int kVectors, int kStrideM, int kStrideK, int kStrideC,
          Start kStart, bool kTop>
inline __attribute__((always_inline)) void product_rest(int rows, const Word* a, const Word* b,
                                                        int b_stride, float* c, int words,
                                                        const float* factor, float* top) {
  if constexpr (kRows > 0) {
    if (rows == kRows) {
      product_step<Simd, kRows, kVectors, kStrideM, kStrideK, kStrideC, kStart, kTop>(
          a, b, b_stride, c, words, factor, top);
    } else {
      product_rest<Simd, kRows - 1, kVectors, kStrideM, kStrideK, kStrideC, kStart, kTop>(
          rows, a, b, b_stride, c, words, factor, top);
    }
  }
}

struct NoStep {
  void operator()() const {}
};

/// C of `rows` x (kVectors x lanes): steps of kProductRows rows, then the rest. `step` is called
/// before each step: a place for what may run beside the arithmetic.
template <class Simd, int kVectors, int kStrideM, int kStrideK, int kStrideC, Start kStart,
          bool kTop = false, class Step = NoStep>
__attribute__((noinline)) void product(int rows, const Word* a, const Word* b, int b_stride,
                                       float* c, int words, const float* factor = nullptr,
                                       Step step = {}, float* top = nullptr) {
  constexpr int kStep = Simd::kProductRows;
  for (; rows >= kStep; rows -= kStep) {
    step();
    product_step<Simd, kStep, kVectors, kStrideM, kStrideK, kStrideC, kStart, kTop>(
        a, b, b_stride, c, words, factor, top);
    a += kStep * kStrideM;
    c += kStep * kStrideC;
  }
  product_rest<Simd, kStep - 1, kVectors, kStrideM, kStrideK, kStrideC, kStart, kTop>(
      rows, a, b, b_stride, c, words, factor, top);
}

}  // namespace
}  // namespace distca::kernels
