// Loops of multiply-adds without memory. Each instruction set is a function with a target of its
// own; only intrinsics are called there, so no other function is compiled for that target.

#include "distca/kernels/cpu/peak.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "distca/base/clock.h"
#include "distca/base/error.h"

namespace distca::kernels {
namespace {

constexpr int64_t kSteps = 20'000;  // steps of a burst, which takes some 50 to 150 us
// Independent sums: more than latency x instructions a cycle (4 x 2 on the machines at hand, 6 x 2
// for dot products and for a multiplication and an addition), and few enough for the registers.
constexpr int kSums16 = 12;  // sums where there are 16 registers
constexpr int kSums32 = 24;  // sums where there are 32 registers

/// One burst: its FLOP, and the function that runs it. The function returns the sum of all results,
/// so that the compiler leaves nothing out.
struct Burst {
  float (*run)(float factor, float term);
  double flops;
};

// Sums converge to term / (1 - factor): no overflow, no denormals. They start apart: the compiler
// would compute equal ones once.

using Vector16 = float __attribute__((vector_size(16)));

float portable_burst(float factor, float term) {
  const Vector16 x = {factor, factor, factor, factor}, y = {term, term, term, term};
  Vector16 sums[kSums16];
  for (int i = 0; i < kSums16; ++i) sums[i] = y * static_cast<float>(i);
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (Vector16& sum : sums) sum = sum * x + y;
  }
  Vector16 total = {};
  for (const Vector16& sum : sums) total += sum;
  return total[0];
}

#if defined(__x86_64__)

__attribute__((target("avx2,fma"))) float avx2_burst(float factor, float term) {
  const __m256 x = _mm256_set1_ps(factor), y = _mm256_set1_ps(term);
  __m256 sums[kSums16];
  for (int i = 0; i < kSums16; ++i) sums[i] = _mm256_set1_ps(term * static_cast<float>(i));
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (__m256& sum : sums) sum = _mm256_fmadd_ps(sum, x, y);
  }
  __m256 total = _mm256_setzero_ps();
  for (const __m256& sum : sums) total = _mm256_add_ps(total, sum);
  return _mm256_cvtss_f32(total);
}

__attribute__((target("avx512f"))) float avx512_burst(float factor, float term) {
  const __m512 x = _mm512_set1_ps(factor), y = _mm512_set1_ps(term);
  __m512 sums[kSums32];
  for (int i = 0; i < kSums32; ++i) sums[i] = _mm512_set1_ps(term * static_cast<float>(i));
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 24
    for (__m512& sum : sums) sum = _mm512_fmadd_ps(sum, x, y);
  }
  __m512 total = _mm512_setzero_ps();
  for (const __m512& sum : sums) total = _mm512_add_ps(total, sum);
  return _mm512_cvtss_f32(total);
}

/// Sums grow to at most kSteps x 2 x factor x term.
__attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"))) float avx512_bf16_burst(
    float factor, float term) {
  const __m512bh x = _mm512_cvtne2ps_pbh(_mm512_set1_ps(factor), _mm512_set1_ps(factor));
  const __m512bh y = _mm512_cvtne2ps_pbh(_mm512_set1_ps(term), _mm512_set1_ps(term));
  __m512 sums[kSums32];
  for (int i = 0; i < kSums32; ++i) sums[i] = _mm512_set1_ps(term * static_cast<float>(i));
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 24
    for (__m512& sum : sums) sum = _mm512_dpbf16_ps(sum, x, y);
  }
  __m512 total = _mm512_setzero_ps();
  for (const __m512& sum : sums) total = _mm512_add_ps(total, sum);
  return _mm512_cvtss_f32(total);
}

#endif

Burst burst_of(Isa isa, ScalarType type) {
  constexpr double kMultiplyAdd = 2, kDotOfPairs = 4;
  const auto flops = [](int sums, int lanes, double each) {
    return static_cast<double>(kSteps) * sums * lanes * each;
  };
#if defined(__x86_64__)
  if (isa == Isa::kAvx512Bf16 && type == ScalarType::kBFloat16) {
    return {avx512_bf16_burst, flops(kSums32, 16, kDotOfPairs)};
  }
  if (isa == Isa::kAvx512Bf16 || isa == Isa::kAvx512) {
    return {avx512_burst, flops(kSums32, 16, kMultiplyAdd)};
  }
  if (isa == Isa::kAvx2) return {avx2_burst, flops(kSums16, 8, kMultiplyAdd)};
#endif
  return {portable_burst, flops(kSums16, 4, kMultiplyAdd)};
}

}  // namespace

double run_peak_burst(Isa isa, ScalarType type) {
  DISTCA_CHECK(isa_available(isa), "{} on a machine that lacks it", isa_name(isa));
  const Burst burst = burst_of(isa, type);
  // Read at run time: constants would let the compiler know the result.
  volatile float factor = 0.5F, term = 0.5F;
  const float result = burst.run(factor, term);
  DISTCA_CHECK(result > 0, "{}: the multiply-adds were left out", isa_name(isa));
  return burst.flops / (type == ScalarType::kFloat64 ? 2 : 1);
}

double measured_peak_gflops(Isa isa, ScalarType type, double seconds, int threads) {
  DISTCA_CHECK(isa_available(isa), "{} on a machine that lacks it", isa_name(isa));
  DISTCA_CHECK_GE(threads, 1);
  std::vector<double> rates(threads);
  const auto measure = [&](int thread) {
    double fastest_s = 1e9, flops = 0;
    const Stopwatch all;
    do {
      const Stopwatch watch;
      flops = run_peak_burst(isa, type);
      fastest_s = std::min(fastest_s, watch.seconds());
    } while (all.seconds() < seconds);
    rates[thread] = flops / fastest_s;
  };
  {
    std::vector<std::jthread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back(measure, i);
    measure(0);
  }
  return std::accumulate(rates.begin(), rates.end(), 0.0) * 1e-9;
}

}  // namespace distca::kernels
