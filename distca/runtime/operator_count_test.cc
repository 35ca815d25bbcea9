// How many operators of ATen a layer's core attention calls, with its messages, where tensors are
// treated as a device's are: on a device, each of them is a launch or more.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "distca/comm/as_on_device.h"
#include "distca/comm/aten_types.h"
#include "distca/comm/thread_group.h"
#include "distca/plan/plan_testing.h"
#include "distca/runtime/cuda/flash4_testing.h"
#include "distca/runtime/operator_count.h"
#include "distca/runtime/step_attention_testing.h"

namespace distca {
namespace {

constexpr kernels::Shape kShape{
    .num_heads = 4, .num_kv_heads = 2, .head_dim_qk = 16, .head_dim_v = 16, .softmax_scale = 0.25};
using Counts = std::map<std::string, int64_t>;

/// The calls of each operator by all ranks in `layers` layers.
Counts counts(const Plan& plan, const testing::AttentionStyle& style, int layers,
              KernelChoice choice) {
  const PlanIndex index(plan);
  Counts all;
  std::mutex mutex;
  run_ranks(plan.cluster.num_servers(), {}, [&](Communicator& comm) {
    at::set_num_threads(1);
    const AsOnDevice as_on_device;
    int64_t tokens = 0;
    for (const Segment& segment : plan.layout.workers[comm.rank()]) tokens += segment.tokens.size();
    const auto rows = [&](int64_t heads) {
      return at::randn({tokens, heads, kShape.head_dim_qk}).to(at::kBFloat16);
    };
    AttentionKernel kernel({.choice = choice, .shape = kShape, .type = ScalarType::kBFloat16});
    testing::AttentionLayers nano_batches(1);
    for (int layer = 0; layer < layers; ++layer)
      nano_batches[0].push_back({.q = rows(4), .k = rows(2), .v = rows(2), .d_o = rows(4)});
    ExchangeBuffers buffers(/*cuda_device=*/-1);
    const OperatorCount count;
    testing::play_attention({index.exchange(comm.rank())}, style, kernel, comm, buffers,
                            nano_batches);
    const std::scoped_lock lock(mutex);
    for (const auto& [name, calls] : OperatorCount::names()) all[name] += calls;
  });
  return all;
}

/// The calls of one layer on one rank, by what the second and third layer add. With `backward`,
/// those of backward alone, otherwise those of forward.
double of_a_layer(const Plan& plan, testing::AttentionStyle style, bool backward,
                  KernelChoice choice) {
  const auto total = [&](const testing::AttentionStyle& of, int layers) {
    int64_t sum = 0;
    for (const auto& [name, calls] : counts(plan, of, layers, choice)) sum += calls;
    return sum;
  };
  const auto both_layers = [&](bool with_backward) {
    style.backward = with_backward;
    return static_cast<double>(total(style, 3) - total(style, 1));
  };
  const double forward = both_layers(false);
  return (backward ? both_layers(true) - forward : forward) / 2 / plan.cluster.num_servers();
}

struct Expected {
  const char* name;
  Plan plan;
  Overlap overlap;
  double forward, backward;                // at most, with ATen's operators
  double flash4_forward, flash4_backward;  // with FlashAttention 4, its kernels left out
};

TEST(operator_count, a_layer_calls_few) {
  const std::vector<int64_t> lengths = {2600, 130, 1100, 129,  384, 60, 700,
                                        1,    260, 90,   1400, 300, 17, 513};
  const Plan balanced = make_plan(testing::request_for(lengths, 4, "balanced"));
  const Plan greedy = make_plan(testing::request_for(lengths, 4, "greedy"));
  Random random(5);
  Plan cut = greedy;
  testing::cut_tasks(cut, random);
  const StandInKernels stand_ins;
  setenv("DISTCA_STAND_INS_COMPUTE_NOTHING", "1", /*overwrite=*/1);  // the calls are counted
  for (const auto& [name, plan, overlap, forward, backward, flash4_forward, flash4_backward] :
       {Expected{"balanced", balanced, Overlap::kNone, 12.5, 37.75, 12, 44.75},
        Expected{"balanced, within", balanced, Overlap::kWithin, 16, 48.25, 14, 45},
        Expected{"greedy", greedy, Overlap::kNone, 15, 43.75, 14.5, 53.75},
        Expected{"greedy, split-KV", cut, Overlap::kNone, 129.5, 75.75, 129.25, 108.75}}) {
    for (const KernelChoice choice : {KernelChoice::kAten, KernelChoice::kFa4}) {
      const bool is_flash4 = choice == KernelChoice::kFa4;
      const double of_forward = of_a_layer(plan, {.overlap = overlap}, false, choice);
      const double of_backward = of_a_layer(plan, {.overlap = overlap}, true, choice);
      fmt::print("{}, {}: {} tasks, {:.2f} forward, {:.2f} backward\n", name, kernel_name(choice),
                 plan.tasks.size(), of_forward, of_backward);
      EXPECT_LE(of_forward, is_flash4 ? flash4_forward : forward) << name;
      EXPECT_LE(of_backward, is_flash4 ? flash4_backward : backward) << name;
    }
  }
}

}  // namespace
}  // namespace distca
