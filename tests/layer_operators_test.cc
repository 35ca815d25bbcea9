// The number of PyTorch's operators that the host calls for a whole layer of a step, core attention
// and all else, where tensors are treated as those of a device are. On a device each costs the host
// microseconds.

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <memory>
#include <mutex>

#include "distca/comm/as_on_device.h"
#include "distca/runtime/operator_count.h"
#include "tests/parity_testing.h"

namespace distca::parity {
namespace {

constexpr int kWorkers = 4;

/// The number of operators that all ranks together call in a step.
int64_t calls(const std::string& planner, int64_t layers, bool evaluate) {
  struct Watched {
    AsOnDevice as_on_device;
    OperatorCount count;
  };
  std::mutex mutex;
  int64_t all = 0;
  StepRun step{
      .model = small_llama(2, ScalarType::kBFloat16, layers),
      .documents = {"uneven",
                    {{2600, 130, 1100, 129, 384, 60, 700, 1, 260, 90, 1400, 300, 17, 513}}},
      .workers = kWorkers,
      .planner = planner,
      .play = {.overlap = Overlap::kNone},
      .options = {.kernel = {.choice = KernelChoice::kAten}},
      .evaluate = evaluate};
  step.watch = [&](int, Step&) {
    return std::shared_ptr<Watched>(new Watched, [&](Watched* watched) {
      const std::scoped_lock lock(mutex);
      all += OperatorCount::total();
      delete watched;
    });
  };
  run(step);
  return all;
}

struct Expected {
  const char* planner;
  double forward, all;  // operators of a layer and rank, at most
};

TEST(layer_operators, a_whole_layer_calls_few) {
  for (const auto& [planner, forward, all] :
       {Expected{"balanced", 67, 212.25}, Expected{"greedy", 69, 220.5},
        Expected{"greedy_cut", 175.25, 356}}) {
    const auto of_a_layer = [&](bool evaluate) {
      const int64_t two = calls(planner, 3, evaluate) - calls(planner, 1, evaluate);
      return static_cast<double>(two) / 2 / kWorkers;
    };
    const double of_forward = of_a_layer(true), of_both = of_a_layer(false);
    fmt::print("{}: {:.2f} in an evaluation, {:.2f} forward and backward\n", planner, of_forward,
               of_both);
    EXPECT_LE(of_forward, forward) << planner;
    EXPECT_LE(of_both, all) << planner;
  }
}

}  // namespace
}  // namespace distca::parity
