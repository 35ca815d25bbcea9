// Two stages of a pipeline whose core attention is pooled, backward under other plans than forward
// (program/pipeline_order.h): O and gradients are those of one rank.

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "distca/comm/thread_group.h"
#include "distca/program/pipeline_testing.h"
#include "distca/program/validate/validate.h"
#include "distca/runtime/step_attention_testing.h"

namespace distca::testing {
namespace {

/// [nano-batch] of documents.
const std::vector<std::vector<int64_t>> kLengths = {{700, 130}, {1, 520, 260}, {410}, {90, 300}};
constexpr int kStages = 2;
constexpr int kStageLayers = 2;  // layers of a stage
constexpr int kLayers = kStages * kStageLayers;
const kernels::Shape kShape{
    .num_heads = 4, .num_kv_heads = 2, .head_dim_qk = 16, .head_dim_v = 8, .softmax_scale = 0.25};
const AttentionShape kAttention{.num_heads = 4,
                                .num_kv_heads = 2,
                                .head_dim_qk = 16,
                                .head_dim_v = 8,
                                .type = ScalarType::kFloat64};

/// The tensors that the phases of all layers would give, [nano-batch][layer].
AttentionLayers recorded() {
  at::manual_seed(3);
  AttentionLayers layers;
  for (const std::vector<int64_t>& lengths : kLengths) {
    int64_t tokens = 0;
    for (const int64_t length : lengths) tokens += length;
    const auto random = [tokens](int64_t heads, int64_t dim) {
      return at::randn({tokens, heads, dim}, at::kDouble);
    };
    std::vector<AttentionLayer>& of_layers = layers.emplace_back();
    for (int layer = 0; layer < kLayers; ++layer) {
      of_layers.push_back(
          {.q = random(4, 16), .k = random(2, 16), .v = random(2, 8), .d_o = random(4, 8)});
    }
  }
  return layers;
}

AttentionKernel kernel() {
  return AttentionKernel(
      {.choice = KernelChoice::kAten, .shape = kShape, .type = ScalarType::kFloat64});
}

AttentionLayers on_one_rank() {
  AttentionLayers layers = recorded();
  run_ranks(1, {}, [&](Communicator& comm) {
    std::vector<RankExchange> exchanges;
    for (const std::vector<int64_t>& lengths : kLengths) {
      Layout layout{.workers = {{}}};
      for (size_t i = 0; i < lengths.size(); ++i) {
        layout.workers[0].push_back({static_cast<int64_t>(i), {0, lengths[i]}});
      }
      const Plan plan = make_plan({.nano_batch = NanoBatch::from_lengths(lengths),
                                   .cluster = Cluster::in_place(1),
                                   .shape = kAttention},
                                  std::move(layout));
      exchanges.push_back(PlanIndex(plan).exchange(0));
    }
    AttentionKernel attention = kernel();
    ExchangeBuffers buffers(/*cuda_device=*/-1);
    play_attention(exchanges, {}, attention, comm, buffers, layers);
  });
  return layers;
}

class CoreAttentionTicks : public ::testing::TestWithParam<Overlap> {};

TEST_P(CoreAttentionTicks,
       two_stages_in_one_exchange_and_other_plans_backward_give_one_ranks_values) {
  const std::vector<Program> programs =
      pipeline_programs({.layers = std::vector<int64_t>(kStages, kStageLayers),
                         .lengths = kLengths,
                         .overlap = GetParam(),
                         .shape = kAttention,
                         .types = exchange_types(ScalarType::kFloat64, false)});
  ASSERT_TRUE(validate(programs).empty()) << validate(programs)[0];
  std::vector<AttentionLayers> stages(kStages, recorded());
  std::vector<int64_t> sent(kStages);
  run_ranks(kStages, {}, [&](Communicator& comm) {
    const auto rank = static_cast<size_t>(comm.rank());
    AttentionKernel attention = kernel();
    ExchangeBuffers buffers(/*cuda_device=*/-1);
    buffers.prepare(programs[rank]);
    AttentionPlayer player(programs[rank], attention, comm, buffers, stages[rank]);
    OpTimes times;
    distca::play(programs[rank], player, &times);
    sent[rank] = player.bytes().sent;
  });
  const AttentionLayers want = on_one_rank();
  for (size_t nano_batch = 0; nano_batch < kLengths.size(); ++nano_batch) {
    for (size_t layer = 0; layer < kLayers; ++layer) {
      SCOPED_TRACE(fmt::format("nano-batch {}, layer {}", nano_batch, layer));
      const AttentionLayer& a = stages[layer / kStageLayers][nano_batch][layer];
      const AttentionLayer& b = want[nano_batch][layer];
      EXPECT_LE(difference({a.o}, {b.o}), 1e-10);
      EXPECT_LE(difference({a.dq}, {b.dq}), 1e-10);
      EXPECT_LE(difference({a.dk}, {b.dk}), 1e-10);
      EXPECT_LE(difference({a.dv}, {b.dv}), 1e-10);
    }
  }
  for (const int64_t bytes : sent) EXPECT_GT(bytes, 0);
}
INSTANTIATE_TEST_SUITE_P(overlaps, CoreAttentionTicks,
                         ::testing::Values(Overlap::kNone, Overlap::kWithin, Overlap::kPingPong),
                         [](const auto& info) {
                           std::string name(overlap_name(info.param));
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace distca::testing
