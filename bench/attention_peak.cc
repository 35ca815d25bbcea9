#include "bench/attention_peak.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "bench/timing.h"

namespace distca::bench {
namespace {

double parallel_seconds(kernels::Isa isa, ScalarType type, std::span<const int> cores, int bursts) {
  std::atomic<size_t> ready = 0;
  std::vector<double> began(cores.size());
  std::vector<double> ended(cores.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < cores.size(); ++i) {
    threads.emplace_back([&, i] {
      pin_to(cores.subspan(i, 1));
      ++ready;
      while (ready < cores.size()) std::this_thread::yield();
      began[i] = steady_seconds();
      for (int burst = 0; burst < bursts; ++burst) kernels::run_peak_burst(isa, type);
      ended[i] = steady_seconds();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return *std::max_element(ended.begin(), ended.end()) -
         *std::min_element(began.begin(), began.end());
}

}  // namespace

Contender peak_loop(kernels::Isa isa, ScalarType type, Clock clock) {
  return {.flops = kernels::run_peak_burst(isa, type),
          .seconds = timed(clock, [isa, type] { kernels::run_peak_burst(isa, type); })};
}

Contender parallel_peak_loop(kernels::Isa isa, ScalarType type, std::span<const int> cores,
                             double seconds) {
  const Contender burst = peak_loop(isa, type, Clock::kThread);
  const int bursts = std::max(1, static_cast<int>(seconds / burst.seconds()));
  const double all_bursts = bursts * static_cast<double>(cores.size());
  return {.flops = burst.flops * all_bursts,
          .seconds = [=] { return parallel_seconds(isa, type, cores, bursts); }};
}

}  // namespace distca::bench
