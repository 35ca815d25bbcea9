#include "distca/program/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "distca/plan/layer_time.h"
#include "distca/program/program_testing.h"

namespace distca::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Program, describes_an_operation_in_words) {
  EXPECT_EQ(describe({.kind = OpKind::kEnter, .layer = 3, .nano_batch = 1}),
            "forward layer 3 enter of nano-batch 1");
  EXPECT_EQ(describe({.kind = OpKind::kLoss, .pass = Pass::kBackward, .nano_batch = 0}),
            "backward loss of nano-batch 0");
  EXPECT_EQ(
      describe({.kind = OpKind::kAttend, .tasks = TaskSet::kAway, .layer = 0, .nano_batch = 2}),
      "forward layer 0 attend (away) of nano-batch 2");
  EXPECT_EQ(describe({.kind = OpKind::kOptimizer}), "optimizer");
}

TEST(Program, every_kind_and_buffer_has_a_name) {
  for (int kind = 0; kind < kNumOpKinds; ++kind) {
    EXPECT_STRNE(op_name(static_cast<OpKind>(kind)), "?") << kind;
  }
  EXPECT_STREQ(op_name(static_cast<OpKind>(kNumOpKinds)), "?") << "kNumOpKinds counts them all";
  for (int role = 0; role <= static_cast<int>(BufferRole::kActivationIn); ++role) {
    EXPECT_STRNE(buffer_name(static_cast<BufferRole>(role)), "?") << role;
  }
}

TEST(Program, prints_a_line_for_each_operation_and_buffer) {
  const StepExchanges step = plan_step({{2000, 300, 100}}, Cluster::in_place(2));
  const Program program = program_of(step, 0, {.num_layers = 1});
  const std::string text = print_program(program);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'),
            static_cast<int64_t>(1 + program.ops.size() + program.buffers.size()));
  EXPECT_THAT(text, AllOf(HasSubstr("comm     forward layer 0 enter of nano-batch 0 "),
                          HasSubstr("tag 1, "), HasSubstr(" bytes from 1\n"),
                          HasSubstr("buffer 0: qkv_out, ")));
}

BlockRows rows(int32_t block, int64_t tokens, int64_t position) {
  return {.block = block, .row = 0, .position = position, .tokens = tokens};
}

ServerTask task(int32_t q_block, int64_t tokens, int32_t kv_block) {
  return {.q = rows(q_block, tokens, 0), .kv = {rows(kv_block, tokens, 0)}};
}

TEST(TaskSets, divide_the_tasks_by_what_they_need) {
  RankExchange exchange;
  exchange.tasks = {task(0, 100, 0), task(0, 100, 1), task(0, 100, 0), task(2, 50, 2),
                    task(0, 100, 0), task(2, 10, 0),  task(0, 100, 0)};
  EXPECT_THAT(task_set(exchange, TaskSet::kAll), ElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_THAT(task_set(exchange, TaskSet::kAway), ElementsAre(1, 3, 5));
  EXPECT_THAT(task_set(exchange, TaskSet::kHomeFirst), ElementsAre(0, 2));
  EXPECT_THAT(task_set(exchange, TaskSet::kHomeRest), ElementsAre(4, 6));
}

TEST(TaskSets, a_home_task_alone_runs_while_keys_arrive) {
  RankExchange exchange;
  exchange.tasks = {task(1, 10, 1), task(0, 10, 0)};
  EXPECT_THAT(task_set(exchange, TaskSet::kHomeFirst), ElementsAre(1));
  EXPECT_THAT(task_set(exchange, TaskSet::kHomeRest), IsEmpty());
}

TEST(TaskSets, a_long_home_task_is_a_half_by_itself) {
  RankExchange exchange;
  exchange.tasks = {task(0, 1000, 0), task(0, 10, 0), task(0, 20, 0), task(1, 10, 1)};
  EXPECT_THAT(task_set(exchange, TaskSet::kHomeFirst), ElementsAre(0));
  EXPECT_THAT(task_set(exchange, TaskSet::kHomeRest), ElementsAre(1, 2));
}

TEST(Messages, have_the_bytes_of_their_rows) {
  const AttentionShape shape{.num_heads = 4, .num_kv_heads = 2, .head_dim_qk = 16, .head_dim_v = 8};
  const ExchangeTypes types{.compute = ScalarType::kBFloat16};
  const PeerTransfer both{.peer = 1, .q_tokens = 10, .kv_tokens = 30};
  EXPECT_EQ(qkv_message_bytes(both, shape, types), 2 * (10 * 4 * 16 + 30 * 2 * (16 + 8)));
  EXPECT_EQ(o_message_bytes(both, shape, types), 10 * 4 * (2 * 8 + 4));
  EXPECT_EQ(d_o_message_bytes(both, shape, types), 10 * 4 * (2 * 8 + 2 * 4));
  EXPECT_EQ(gradient_message_bytes(both, shape, ScalarType::kFloat32),
            4 * (10 * 4 * 16 + 30 * 2 * (16 + 8)));
  const PeerTransfer keys{.peer = 1, .kv_tokens = 30};
  EXPECT_EQ(o_message_bytes(keys, shape, types), 0);
  EXPECT_EQ(d_o_message_bytes(keys, shape, types), 0);
  EXPECT_GT(qkv_message_bytes(keys, shape, types), 0);
}

TEST(Messages, are_as_many_bytes_as_the_planner_counts) {
  for (const auto& [compute, gradient] : {std::pair(ScalarType::kBFloat16, ScalarType::kBFloat16),
                                          std::pair(ScalarType::kBFloat16, ScalarType::kFloat32),
                                          std::pair(ScalarType::kFloat32, ScalarType::kFloat32),
                                          std::pair(ScalarType::kFloat64, ScalarType::kFloat64)}) {
    const ScalarType accumulator =
        compute == ScalarType::kFloat64 ? ScalarType::kFloat64 : ScalarType::kFloat32;
    for (const Cluster& cluster : {pool(3, 0, true), pool(2, 1, true), pool(2, 2, false)}) {
      const StepExchanges step = plan_step({{2000, 300, 100}, {1500, 900, 700, 40}}, cluster);
      for (const bool resent : {false, true}) {
        const Style style{
            .resent = resent, .num_layers = 3, .types = {compute, accumulator, gradient}};
        int64_t sent = 0;
        for (const Program& program : programs_of(step, style)) {
          for (const Op& op : program.ops) sent += op.bytes;
        }
        int64_t counted = 0;
        for (const auto& plan : step.plans) {
          plan->shape.element_bytes = element_bytes(compute);
          LayerTimeOptions options{.resent = resent, .wide_gradients = gradient == accumulator};
          options.speeds.ranks.resize(step.num_ranks());
          counted += style.num_layers * layer_time(*plan, nullptr, options).bytes;
        }
        EXPECT_GT(sent, 0);
        EXPECT_EQ(sent, counted) << element_bytes(compute) << ", " << element_bytes(gradient)
                                 << ", " << step.num_ranks() << " ranks, resent " << resent;
      }
    }
  }
}

}  // namespace
}  // namespace distca::testing
