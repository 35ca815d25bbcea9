#include "distca/kernels/cpu/peak.h"

#include <algorithm>
#include <numeric>
#include <thread>
#include <vector>

#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/kernels/cpu/engine.h"

namespace distca::kernels {

double run_peak_burst(Isa isa, ScalarType type) {
  const Burst& burst = engine_of(isa, type).burst;
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
