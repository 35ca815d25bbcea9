// A pipeline's ticks fit programs and validator: an exchange may pool micro-batches of several
// stages, and backward may follow another plan than forward.

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

std::vector<Program> two_stages() {
  return tick_programs({{2000, 300}, {700, 900, 40}},
                       {.num_heads = 4, .num_kv_heads = 2, .head_dim_qk = 16, .head_dim_v = 8}, {});
}

/// Without the operation of this name, and whatever waits for it waiting for the one before.
void erase(Program& program, const std::string& name) {
  const auto found =
      std::ranges::find_if(program.ops, [&name](const Op& op) { return short_name(op) == name; });
  ASSERT_NE(found, program.ops.end()) << name;
  program.ops.erase(found);
  for (size_t i = 1; i < program.ops.size(); ++i) {
    const auto before = static_cast<int32_t>(i) - 1;
    const bool communicates = program.ops[i - 1].stream == Stream::kComm;
    program.ops[i].wait_for = {before};
    program.ops[i].wait_sends =
        communicates ? std::vector<int32_t>{before} : std::vector<int32_t>{};
  }
}

TEST(Ticks, a_two_stage_pipeline_is_a_valid_program) {
  const std::vector<Program> programs = two_stages();
  EXPECT_THAT(validate(programs), IsEmpty());
  int64_t messages = 0;
  for (const Op& op : programs[0].ops) messages += programs[0].sends(op).empty() ? 0 : 1;
  EXPECT_GT(messages, 10);
}

TEST(Ticks, an_idle_stage_serves_attention_alone) {
  const std::vector<Program> programs = two_stages();
  EXPECT_THAT(
      order_of(programs[0]),
      StartsWith("pre_attention 0a, dispatch 0a, core_attention 0a, combine 0a, post_attention 0a, "
                 "pre_attention 1a, dispatch 1a, core_attention 1a, combine 1a, post_attention 1a, "
                 "pre_attention 0b, "));
  EXPECT_THAT(
      order_of(programs[1]),
      StartsWith(
          "dispatch, core_attention, combine, dispatch, core_attention, combine, "
          "pre_attention 2a, dispatch 2a, core_attention 2a, combine 2a, post_attention 2a"));
}

TEST(Ticks, what_serves_backward_under_a_plan_of_its_own_has_what_it_needs) {
  for (const char* name : {"redispatch 1a'", "dispatch 1a'", "core_attention 1a'", "combine 1a'"}) {
    std::vector<Program> programs = two_stages();
    erase(programs[0], name);
    EXPECT_THAT(validate(programs[0]), Contains(HasSubstr("backward layer 1"))) << name;
  }
}

TEST(Ticks, a_rank_that_does_not_serve_a_tick_is_found) {
  std::vector<Program> programs = two_stages();
  std::erase_if(programs[1].ops, [](const Op& op) { return op.exchange == 0; });
  for (size_t i = 0; i < programs[1].ops.size(); ++i) {
    programs[1].ops[i].wait_for =
        i > 0 ? std::vector<int32_t>{static_cast<int32_t>(i) - 1} : std::vector<int32_t>{};
    programs[1].ops[i].wait_sends.clear();
    if (i > 0 && programs[1].ops[i - 1].stream == Stream::kComm) {
      programs[1].ops[i].wait_sends = {static_cast<int32_t>(i) - 1};
    }
  }
  ASSERT_THAT(validate(programs[1]), IsEmpty());
  EXPECT_THAT(validate(programs),
              Contains(AllOf(HasSubstr("rank 0:"), HasSubstr("which has no such tag"))));
}

}  // namespace
}  // namespace distca::testing
