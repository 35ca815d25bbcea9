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
using ::testing::HasSubstr;

TEST(Program, describes_an_operation_in_words) {
  EXPECT_EQ(describe({.kind = OpKind::kDispatch, .layer = 3, .nano_batch = 1}),
            "forward layer 3 dispatch of nano-batch 1");
  EXPECT_EQ(describe({.kind = OpKind::kLoss, .pass = Pass::kBackward, .nano_batch = 0}),
            "backward loss of nano-batch 0");
  EXPECT_EQ(
      describe(
          {.kind = OpKind::kCoreAttention, .tasks = TaskSet::kAway, .layer = 0, .nano_batch = 2}),
      "forward layer 0 core_attention (away) of nano-batch 2");
  EXPECT_EQ(describe({.kind = OpKind::kOptimizer}), "optimizer");
  EXPECT_EQ(describe({.kind = OpKind::kCoreAttention, .exchange = 2, .layer_step = 1}),
            "forward core_attention of exchange 2, layer step 1");
}

TEST(Program, prints_a_line_for_each_operation_and_buffer) {
  const StepExchanges step = plan_step({{2000, 300, 100}}, Cluster::in_place(2));
  const Program program = program_of(step, 0, {.num_layers = 1});
  const std::string text = print_program(program);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'),
            static_cast<int64_t>(1 + program.ops.size() + program.buffers.size()));
  EXPECT_THAT(text, AllOf(HasSubstr("comm     forward layer 0 dispatch of nano-batch 0 "),
                          HasSubstr("tag 1, "), HasSubstr(" bytes from 1\n"),
                          HasSubstr("buffer 0: qkv_out, ")));
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
      for (const bool redispatched : {false, true}) {
        const Style style{.redispatched = redispatched,
                          .num_layers = 3,
                          .types = {compute, accumulator, gradient}};
        int64_t sent = 0;
        for (const Program& program : programs_of(step, style)) {
          for (const Op& op : program.ops) sent += program.sends(op).bytes;
        }
        int64_t counted = 0;
        for (const auto& plan : step.plans) {
          plan->shape.type = compute;
          LayerTimeOptions options{.redispatched = redispatched,
                                   .wide_gradients = gradient == accumulator};
          options.speeds.ranks.resize(step.num_ranks());
          counted += style.num_layers * layer_time(*plan, nullptr, options).bytes;
        }
        EXPECT_GT(sent, 0);
        EXPECT_EQ(sent, counted) << element_bytes(compute) << ", " << element_bytes(gradient)
                                 << ", " << step.num_ranks() << " ranks, redispatched "
                                 << redispatched;
      }
    }
  }
}

}  // namespace
}  // namespace distca::testing
