#include "distca/runtime/attention_memory.h"

#include <gtest/gtest.h>

#include "distca/cost/pass.h"
#include "distca/plan/exchange.h"
#include "distca/plan/plan.h"

namespace distca {
namespace {

constexpr kernels::Shape kShape{
    .num_heads = 4, .num_kv_heads = 2, .head_dim_qk = 64, .head_dim_v = 64, .softmax_scale = 0.1};
constexpr AttentionShape kAttention{
    .num_heads = 4, .num_kv_heads = 2, .head_dim_qk = 64, .head_dim_v = 64};

AttentionExchange exchange_of(const Plan& plan, int rank) {
  const PlanIndex index(plan);
  return make_attention_exchange(index.exchange(rank), kAttention,
                                 exchange_types(ScalarType::kBFloat16, false));
}

int64_t of(const AttentionMemory& memory, TaskSet set, Pass pass) {
  return memory[static_cast<size_t>(set)][static_cast<size_t>(pass)];
}

TEST(AttentionMemory, of_a_document_alone_is_that_of_its_launch) {
  const Plan plan =
      make_plan({.nano_batch = NanoBatch::from_lengths({1000}), .cluster = Cluster::in_place(1)});
  const kernels::FlashDevice device{.multiprocessors = 12, .deterministic = true};
  const AttentionMemory memory =
      cuda_attention_memory(exchange_of(plan, 0), kShape, ScalarType::kBFloat16, device);
  // O of 512 bytes a row, LSE of 16 bytes, twice.
  EXPECT_EQ(of(memory, TaskSet::kAll, Pass::kForward), 1000 * (512 + 2 * 16));
  // 12 multiprocessors for 4 heads: sums of dQ in 3 parts.
  EXPECT_EQ(of(memory, TaskSet::kAll, Pass::kBackward),
            1000 * 512       // O from delta
                + 1000 * 16  // LSE by heads
                + 1000 * (512 + 512) + 1128 * 16 + 3 * 1128 * 4 * 64 * 4 + 1000 * 1024);
}

TEST(AttentionMemory, of_what_no_fused_operator_computes_is_not_counted) {
  const Plan plan =
      make_plan({.nano_batch = NanoBatch::from_lengths({1000}), .cluster = Cluster::in_place(1)});
  const AttentionExchange exchange = exchange_of(plan, 0);
  EXPECT_EQ(cuda_attention_memory(exchange, kShape, ScalarType::kFloat64, {}), AttentionMemory{});
  EXPECT_NE(cuda_attention_memory(exchange, kShape, ScalarType::kFloat32, {}), AttentionMemory{});
  kernels::Shape other = kShape;
  other.head_dim_v = 32;
  EXPECT_EQ(cuda_attention_memory(exchange, other, ScalarType::kBFloat16, {}), AttentionMemory{});
}

TEST(AttentionMemory, of_keys_of_several_ranks_has_them_gathered) {
  // One document on two ranks: the second one's queries need the first one's keys.
  const Plan plan =
      make_plan({.nano_batch = NanoBatch::from_lengths({2048}), .cluster = Cluster::in_place(2)});
  int64_t forward = 0, in_place = 0;
  for (int rank = 0; rank < 2; ++rank) {
    const AttentionMemory memory =
        cuda_attention_memory(exchange_of(plan, rank), kShape, ScalarType::kBFloat16, {});
    forward += of(memory, TaskSet::kAll, Pass::kForward);
    in_place += 1024 * (512 + 2 * 16);
    EXPECT_GE(of(memory, TaskSet::kAll, Pass::kForward),
              of(memory, TaskSet::kAway, Pass::kForward));
  }
  EXPECT_GT(forward, in_place + 1024 * 512) << "K and V of some rows lie beside others'";
}

}  // namespace
}  // namespace distca
