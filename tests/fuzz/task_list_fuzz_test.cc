#include "tests/fuzz/task_list_fuzz.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "distca/base/file.h"
#include "distca/base/random.h"

namespace distca::kernels::fuzz {
namespace {

TEST(TaskListFuzzTest, known_inputs_end_as_their_names_say) {
  int inputs = 0;
  for (const auto& entry : std::filesystem::directory_iterator("tests/fuzz/corpus/task_list")) {
    const std::string bytes = read_file(entry.path());
    Outcome outcome;
    EXPECT_NO_THROW(
        outcome = run_task_list({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}))
        << entry.path();
    const std::string name = entry.path().filename();
    ASSERT_TRUE(name.starts_with("accepted_") || name.starts_with("backward_only_") ||
                name.starts_with("refused_"))
        << name;
    EXPECT_EQ(outcome.forward, name.starts_with("accepted_")) << name;
    EXPECT_EQ(outcome.backward, !name.starts_with("refused_")) << name;
    ++inputs;
  }
  EXPECT_GE(inputs, 10);
}

class TaskListFuzzSeedsTest : public ::testing::TestWithParam<int> {};

TEST_P(TaskListFuzzSeedsTest, random_inputs_end_in_a_result_or_an_error) {
  constexpr int kInputs = 500;
  int forward = 0, backward = 0, compared = 0;
  for (int i = 0; i < kInputs; ++i) {
    Random random(static_cast<uint64_t>(i), static_cast<uint64_t>(GetParam()));
    std::vector<uint8_t> bytes(random.below(300));
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.next() >> 32);
    Outcome outcome;
    EXPECT_NO_THROW(outcome = run_task_list(bytes)) << "seed " << i;
    forward += outcome.forward, backward += outcome.backward, compared += outcome.compared;
  }
  // Neither refuses nearly all nor nearly none.
  EXPECT_GT(forward, kInputs / 10);
  EXPECT_GT(backward, kInputs / 10);
  EXPECT_GT(compared, kInputs / 20);
  EXPECT_LT(forward, kInputs * 9 / 10);
}

INSTANTIATE_TEST_SUITE_P(streams, TaskListFuzzSeedsTest, ::testing::Range(0, 6));

TEST(TaskListFuzzTest, no_bytes_are_an_empty_list) {
  const Outcome outcome = run_task_list({});
  EXPECT_TRUE(outcome.forward);
  EXPECT_TRUE(outcome.backward);
}

}  // namespace
}  // namespace distca::kernels::fuzz
