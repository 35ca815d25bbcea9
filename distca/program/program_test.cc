#include "distca/program/program.h"

#include <gtest/gtest.h>

namespace distca {
namespace {

TEST(program, blocking_training_step_is_valid_and_complete) {
  const int layers = 3, nano_batches = 2;
  const Program program =
      build_blocking_program({.num_layers = layers, .num_nano_batches = nano_batches});
  EXPECT_TRUE(validate(program).empty());
  // Per nano-batch: embed and loss, 5 operations a layer, twice for the two passes; then sum and
  // update.
  EXPECT_EQ(program.ops.size(), size_t(nano_batches * 2 * (2 + 5 * layers) + 2));
  EXPECT_EQ(program.ops.back().kind, OpKind::kOptimizer);
}

TEST(program, evaluation_has_no_backward) {
  const Program program = build_blocking_program(
      {.num_layers = 2, .num_nano_batches = 1, .kind = ProgramShape::Kind::kEvaluate});
  EXPECT_TRUE(validate(program).empty());
  for (const Op& op : program.ops) EXPECT_EQ(op.pass, Pass::kForward) << describe(op);
}

TEST(program, backward_sends_before_it_attends_and_returns_after) {
  const Program program = build_blocking_program({.num_layers = 1, .num_nano_batches = 1});
  std::string backward;
  for (const Op& op : program.ops) {
    if (op.pass == Pass::kBackward && op.layer == 0)
      backward += std::string(op_name(op.kind)) + " ";
  }
  EXPECT_EQ(backward, "post enter attend leave pre ");
}

TEST(program, validator_names_what_is_broken) {
  const Program good = build_blocking_program({.num_layers = 1, .num_nano_batches = 1});
  Program cycle = good;
  cycle.ops[2].deps = {5};
  ASSERT_EQ(validate(cycle).size(), 1u);
  EXPECT_NE(validate(cycle)[0].find("depends on 5"), std::string::npos);
  Program no_enter = good;
  no_enter.ops[2].kind = OpKind::kPost;  // the forward enter
  EXPECT_FALSE(validate(no_enter).empty());
  Program twice = good;
  twice.ops.push_back(twice.ops.back());
  twice.ops.back().deps.clear();
  ASSERT_EQ(validate(twice).size(), 1u);
  EXPECT_NE(validate(twice)[0].find("stands twice"), std::string::npos);
}

}  // namespace
}  // namespace distca
