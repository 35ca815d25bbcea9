#pragma once
// The only microkernel, which does all matrix products of the CPU kernel:
//   C [m][lanes] = start + sum over k of A(m, k) * B [k][lanes]
//
// Lanes run over vectors. A is broadcast word by word, so all that it needs is a fixed stride
// between rows. A(m, k) is at a[m * kStrideM + k * kStrideK]: with kStrideK = 1, A is read as it
// lies, with kStrideM = 1 transposed. Because the compiler knows the strides, it keeps one pointer
// in registers instead of thirteen. Sums run over k in ascending order, with fused multiply-adds,
// so the bits of a lane depend only on A and on the lane's own column of B.
//
// `Simd` is one of simd_*.h. Thread rule: no shared state.

#include "distca/kernels/cpu/word.h"

namespace distca::kernels {
namespace {

/// The values that the sums begin with.
enum class Start {
  kZero,    // C = A B
  kAdd,     // C += A B
  kRescale  // C = C * factor + A B, `factor` one number a lane
};

/// A product with kRows x kVectors accumulators. kStrideC is between the rows of C, and b_stride
/// between those of B. With kTop, each lane of `top` becomes the maximum of itself and the lane's
/// column of C; NaN is passed over.
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
          sum[m][v] = sum[m][v] * Simd::load(factor + v * kLanes);
        }
      }
    }
  }
#pragma GCC unroll 2
  for (int k = 0; k < words; ++k) {
    Vector operand[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) operand[v] = Simd::load(b + v * kLanes);
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

/// Does product_step for 0 to kRows rows, whose number is known only at run time.
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

/// A step that does nothing.
struct NoStep {
  void operator()() const {}
};

/// A product with any number of rows: steps of kProductRows rows, then the rest. C has kVectors x
/// kLanes columns. `step` is called before each step, for work that may run during the arithmetic.
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
