#include "bench/exchange_windows.h"

#include <gtest/gtest.h>

#include "bench/swapped_plan.h"
#include "distca/plan/exchange.h"
#include "distca/program/overlap.h"

namespace distca::bench {
namespace {

Op compute(OpKind kind, int layer, int nano_batch, std::vector<int32_t> wait_for = {}) {
  Op op;
  op.kind = kind;
  op.layer = layer;
  op.nano_batch = nano_batch;
  op.wait_for = std::move(wait_for);
  return op;
}

Op exchange(OpKind kind, int layer, int nano_batch) {
  Op op = compute(kind, layer, nano_batch);
  op.stream = Stream::kComm;
  op.exchange = 0;
  return op;
}

/// All its exchanges send Q, K, V to rank 1.
Program program_with(std::vector<Op> ops) {
  AttentionExchange one;
  one.with_servers[static_cast<size_t>(Content::kQkv)].add(1, 64);
  Program program;
  program.ops = std::move(ops);
  program.exchanges = {std::make_shared<const AttentionExchange>(std::move(one))};
  return program;
}

OpSeconds made_seconds() {
  OpSeconds seconds{};
  const auto set = [&](OpKind kind, double forward) {
    seconds[static_cast<size_t>(kind)] = {forward, 2 * forward};
  };
  set(OpKind::kPreAttention, 1);
  set(OpKind::kPostAttention, 3);
  set(OpKind::kCoreAttention, 5);
  set(OpKind::kDispatch, 2);
  set(OpKind::kCombine, 1);
  return seconds;
}

/// Layers 0 to 2; what is looked at is in layer 1.
Program made_program() {
  return program_with({exchange(OpKind::kDispatch, 1, 0), compute(OpKind::kPostAttention, 0, 1),
                       compute(OpKind::kPreAttention, 1, 1), exchange(OpKind::kDispatch, 1, 1),
                       compute(OpKind::kCoreAttention, 1, 0, {0}),
                       compute(OpKind::kCoreAttention, 1, 1, {3}),
                       compute(OpKind::kPostAttention, 2, 0)});
}

TEST(ExchangeWindows, end_at_the_first_operation_that_waits) {
  const auto windows = exchange_windows(made_program(), made_seconds());
  ASSERT_EQ(windows.size(), 2u);
  EXPECT_EQ(windows[0].kind, OpKind::kDispatch);
  EXPECT_EQ(windows[0].exchange_s, 2);
  EXPECT_FALSE(windows[0].under_attention);
  EXPECT_EQ(windows[0].under_s, 4);  // post_attention and pre_attention
  EXPECT_TRUE(windows[1].under_attention);
  EXPECT_EQ(windows[1].under_s, 5);
}

TEST(ExchangeWindows, post_and_the_next_layers_pre_are_one_operation) {
  EXPECT_EQ(exchange_windows(made_program(), made_seconds())[0].longest_s, 4);
  Program program = made_program();
  program.ops[2].nano_batch = 0;  // pre of another nano-batch
  EXPECT_EQ(exchange_windows(program, made_seconds())[0].longest_s, 3);
}

TEST(ExchangeWindows, hold_the_largest_share_and_the_shortest_beside_its_longest_operation) {
  // 2 s under two times 1 s: all of it, and longer than either. Then under 3 s: too short to be
  // longer than the longest operation, at a smaller share.
  const Program program = program_with(
      {exchange(OpKind::kDispatch, 1, 0), compute(OpKind::kPreAttention, 1, 1),
       compute(OpKind::kPreAttention, 1, 2), compute(OpKind::kCoreAttention, 1, 0, {0}),
       exchange(OpKind::kDispatch, 1, 1), compute(OpKind::kPostAttention, 1, 0),
       compute(OpKind::kCoreAttention, 1, 1, {4}), compute(OpKind::kPostAttention, 2, 0)});
  const auto windows = exchange_windows(program, made_seconds());
  ASSERT_EQ(windows.size(), 2u);
  EXPECT_DOUBLE_EQ(windows[0].share(), 1);
  EXPECT_DOUBLE_EQ(windows[0].over_longest(), 2);
  EXPECT_DOUBLE_EQ(windows[1].share(), 2.0 / 3);
  EXPECT_DOUBLE_EQ(windows[1].over_longest(), 2.0 / 3);
}

TEST(ExchangeWindows, first_and_last_layer_and_empty_exchanges_do_not_count) {
  Program program = made_program();
  for (Op& op : program.ops) op.layer = op.layer == 1 ? 2 : op.layer;
  EXPECT_TRUE(exchange_windows(program, made_seconds()).empty());
  program = made_program();
  program.exchanges = {std::make_shared<const AttentionExchange>()};
  EXPECT_TRUE(exchange_windows(program, made_seconds()).empty());
}

TEST(ExchangeWindows, of_ping_pong_hold_one_operation_each) {
  const AttentionShape shape{.num_heads = 4,
                             .num_kv_heads = 2,
                             .head_dim_qk = 8,
                             .head_dim_v = 8,
                             .type = ScalarType::kFloat32};
  const Plan plan = swapped_plan({.home_tokens = 256, .swapped_tokens = 128}, shape);
  const NanoPart part{.exchange = std::make_shared<const AttentionExchange>(
                          make_attention_exchange(PlanIndex(plan).exchange(0), shape, {}))};
  const Program program = build_program({.overlap = Overlap::kPingPong,
                                         .nano_batches = {part, part},
                                         .model = {.num_layers = 8,
                                                   .hidden_size = 32,
                                                   .intermediate_size = 64,
                                                   .attention = shape,
                                                   .vocab_size = 256}});
  const auto windows = exchange_windows(program, made_seconds());
  ASSERT_EQ(windows.size(), 8u);  // dispatch and combine, of either pass, under either operation
  for (const ExchangeWindow& window : windows) {
    EXPECT_EQ(window.under_s, window.longest_s);
    const double pass = window.pass == distca::Pass::kForward ? 1 : 2;
    EXPECT_EQ(window.under_s, (window.under_attention ? 5 : 4) * pass);
  }
}

}  // namespace
}  // namespace distca::bench
