// A pipeline fits programs and validator as they are.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "distca/program/program_testing.h"
#include "distca/program/ticks_testing.h"
#include "distca/program/validate.h"

namespace distca::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

TEST(Ticks, a_two_stage_pipeline_is_a_valid_program) {
  const std::vector<Program> programs = tick_programs();
  EXPECT_THAT(validate(programs), IsEmpty());
  // Every operation is a phase, an attend or an exchange: an executor needs nothing new.
  for (const Program& program : programs) {
    for (const Op& op : program.ops) {
      EXPECT_EQ(op.stream == Stream::kComm, !op.sends.empty() || !op.receives.empty())
          << describe(op);
    }
  }
}

TEST(Ticks, an_idle_stage_serves_attention_alone) {
  const std::vector<Program> programs = tick_programs();
  EXPECT_THAT(order_of(programs[0]),
              StartsWith("embed a, pre 0a, enter 0a, attend 0a, leave 0a, post 0a, "
                         "pre 1a, enter 1a, attend 1a, leave 1a, post 1a, hand_over 2a, "
                         "embed b, pre 0b, "));
  EXPECT_THAT(order_of(programs[1]),
              StartsWith("enter 0a, attend 0a, leave 0a, enter 1a, attend 1a, leave 1a, "
                         "hand_over 2a, pre 2a, enter 2a, attend 2a, leave 2a, post 2a, "));
}

TEST(Ticks, all_stages_run_the_same_pass_in_a_tick) {
  std::vector<Program> programs;
  for (int stage = 0; stage < 2; ++stage) {
    TickStage ticks(stage);
    ticks.tick(0, Pass::kForward, {0, -1});
    // Stage 1 goes on to backward at once, stage 0 serves as if it were forward's next tick.
    ticks.tick(1, Pass::kForward, {-1, 0});
    ticks.tick(2, stage == 0 ? Pass::kForward : Pass::kBackward, {1, 0});
    programs.push_back(ticks.take());
  }
  EXPECT_THAT(validate(programs), Contains(HasSubstr("which has no such tag")));
}

TEST(Ticks, activations_are_waited_for) {
  std::vector<Program> programs = tick_programs();
  for (Op& op : programs[1].ops) {
    if (short_name(op) == "pre 2a") op.deps.clear();
  }
  EXPECT_THAT(validate(programs),
              Contains(AllOf(HasSubstr("rank 1:"), HasSubstr("layer 2 pre"),
                             HasSubstr("does not wait for"), HasSubstr("hand_over"))));
}

}  // namespace
}  // namespace distca::testing
