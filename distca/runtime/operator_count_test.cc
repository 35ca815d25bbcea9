// How many operators of ATen a layer's core attention calls, with its messages, and how many bytes
// it copies, where tensors are treated as a device's are: there, each operator is a launch or more.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <mutex>
#include <utility>
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

/// By all ranks in some layers.
struct Counts {
  int64_t calls = 0;   // operators that were called
  int64_t copied = 0;  // bytes, to and from operators of attention and by merges
};

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
    const ExchangeBytes bytes = testing::play_attention({index.exchange(comm.rank())}, style,
                                                        kernel, comm, buffers, nano_batches);
    const std::scoped_lock lock(mutex);
    for (const auto& [name, calls] : OperatorCount::names()) all.calls += calls;
    all.copied += bytes.copied;
  });
  return all;
}

/// One pass of one layer on one rank.
struct OfALayer {
  double calls, copied_kib;
};

/// Forward and backward, by what the second and third layer add.
std::pair<OfALayer, OfALayer> of_a_layer(const Plan& plan, testing::AttentionStyle style,
                                         KernelChoice choice) {
  const auto passes = [&](bool with_backward) {
    style.backward = with_backward;
    const Counts three = counts(plan, style, 3, choice), one = counts(plan, style, 1, choice);
    const double parts = 2. * plan.cluster.num_servers();
    return OfALayer{static_cast<double>(three.calls - one.calls) / parts,
                    static_cast<double>(three.copied - one.copied) / 1024 / parts};
  };
  const OfALayer forward = passes(false), both = passes(true);
  return {forward, {both.calls - forward.calls, both.copied_kib - forward.copied_kib}};
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
    double most_forward = 0, most_backward = 0;  // KiB copied with ATen's operators
    for (const KernelChoice choice : {KernelChoice::kAten, KernelChoice::kFa4}) {
      const bool is_flash4 = choice == KernelChoice::kFa4;
      const auto [of_forward, of_backward] = of_a_layer(plan, {.overlap = overlap}, choice);
      fmt::print(
          "{}, {}: {} tasks; forward {:.2f} operators, {:.1f} KiB copied; backward {:.2f}, "
          "{:.1f}\n",
          name, kernel_name(choice), plan.tasks.size(), of_forward.calls, of_forward.copied_kib,
          of_backward.calls, of_backward.copied_kib);
      EXPECT_LE(of_forward.calls, is_flash4 ? flash4_forward : forward) << name;
      EXPECT_LE(of_backward.calls, is_flash4 ? flash4_backward : backward) << name;
      if (!is_flash4) most_forward = of_forward.copied_kib, most_backward = of_backward.copied_kib;
      EXPECT_LE(of_forward.copied_kib, most_forward) << name;
      EXPECT_LE(of_backward.copied_kib, most_backward) << name;
    }
  }
}

}  // namespace
}  // namespace distca
