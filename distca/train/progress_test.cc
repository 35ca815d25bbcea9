#include "distca/train/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "distca/base/test_terminal.h"

namespace distca {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

StepMetrics step_of(int64_t step, std::optional<double> validation = std::nullopt) {
  return {.step = step,
          .loss = 2.4021,
          .step_s = 1.5,
          .model_flops = 9e9,
          .peak_flops_per_s = 1e10,
          .validation_loss = validation,
          .plan = {.tokens = 8192, .imbalance_before = 1.354, .imbalance_after = 1.02}};
}

TEST(ClockTime, is_as_long_as_it_must_be) {
  EXPECT_EQ(clock_time(-1), "0:00");
  EXPECT_EQ(clock_time(7.4), "0:07");
  EXPECT_EQ(clock_time(3599), "59:59");
  EXPECT_EQ(clock_time(3600), "1:00:00");
  EXPECT_EQ(clock_time(2 * 86400 - 1), "1d 23:59:59");
  EXPECT_EQ(clock_time(2 * 86400), "2d 00:00:00");
}

TEST(ProgressLine, has_the_validation_loss_only_where_it_was_measured) {
  EXPECT_EQ(progress_line(step_of(50), 100, 75, 1000),
            "step  50/100  loss 2.402  max/mean 1.35>1.02  1:15 left  5,461 tok/s  60 % peak");
  EXPECT_EQ(
      progress_line(step_of(100, 2.405), 100, 0, 1000),
      "step 100/100  loss 2.402  validation 2.405  max/mean 1.35>1.02  0:00 left  5,461 tok/s  "
      "60 % peak");
}

TEST(ProgressLine, fits_the_terminal_by_whole_fields_with_the_figure_of_this_program) {
  EXPECT_EQ(progress_line(step_of(50), 100, 75, 79),
            "step  50/100  loss 2.402  max/mean 1.35>1.02  1:15 left  5,461 tok/s  60 % peak");
  EXPECT_EQ(progress_line(step_of(100, 2.405), 100, 0, 79),
            "step 100/100  loss 2.402  validation 2.405  max/mean 1.35>1.02  0:00 left");
  EXPECT_EQ(progress_line(step_of(1234, 2.405), 100000, 200'000, 79),
            "step   1234/100000  loss 2.402  validation 2.405  max/mean 1.35>1.02");
  EXPECT_EQ(progress_line(step_of(1), 100, 75, 5), "");
}

TEST(ProgressLine, of_step_1_guesses_how_long_the_rest_takes) {
  EXPECT_THAT(progress_line(step_of(1), 100, 75, 1000), HasSubstr("  ~1:15 left  "));
  EXPECT_THAT(progress_line(step_of(1), 1, 0, 1000), HasSubstr("  0:00 left  "));
}

TEST(Progress, counts_the_time_left_from_the_end_of_step_1) {
  TestTerminal terminal(120);
  Console console(terminal.fd());
  Progress progress(console, 1, 1001);
  progress.show(step_of(1));
  console.finish(20);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  // Step 1's own 1.5 s for the other 1000.
  EXPECT_THAT(terminal.screen().back(), HasSubstr("  ~25:00 left"));
  progress.show(step_of(2));
  console.finish(20);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  // Step 2 took 50 ms and some.
  EXPECT_THAT(terminal.screen().back(), Not(HasSubstr("25:00 left")));
  EXPECT_THAT(terminal.screen().back(), HasSubstr("step    2/1001"));
}

TEST(Progress, on_a_terminal_keeps_lines_with_a_validation_loss_and_the_last_one) {
  TestTerminal terminal;
  {
    Console console(terminal.fd());
    Progress progress(console, 1, 9);
    progress.begin("two workers");
    for (int step = 1; step <= 5; ++step) {
      progress.show(step_of(step, step == 3 ? std::optional(2.5) : std::nullopt));
      console.finish(20);
    }
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_THAT(terminal.screen(),
              ElementsAre("two workers", HasSubstr("step 3/9  loss 2.402  validation 2.500"),
                          HasSubstr("step 5/9"), ""));
  for (const std::string& line : terminal.screen()) EXPECT_LT(line.size(), 80u);
}

}  // namespace
}  // namespace distca
