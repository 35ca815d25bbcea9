#include "distca/train/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "distca/base/file.h"
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
          .grad_norm = 0.73412,
          .lr = 0.00029871,
          .step_s = 1.5,
          .model_flops = 9e9,
          .peak_flops_per_s = 1e10,
          .memory = {{.now_bytes = 1 << 30}, {.now_bytes = 5 << 28, .peak_bytes = 1 << 30}},
          .validation_loss = validation,
          .plan = {.tokens = 8192, .imbalance_before = 1.354, .imbalance_after = 1.02}};
}

TEST(ClockTime, is_as_long_as_it_must_be) {
  EXPECT_EQ(clock_time(-1), "0:00");
  EXPECT_EQ(clock_time(7.4), "0:07");
  EXPECT_EQ(clock_time(3599), "59:59");
  EXPECT_EQ(clock_time(3600), "1:00:00");
  EXPECT_EQ(clock_time(2 * 86400 - 1), "1d 23:59");
  EXPECT_EQ(clock_time(2 * 86400 + 3 * 3600 + 15 * 60 + 59), "2d 03:15");
}

TEST(ProgressLine, has_what_matters_first_and_the_validation_loss_beside_it) {
  EXPECT_EQ(progress_line(step_of(50, 2.405), 100, 75, 1000),
            "step  50/100  loss 2.402  max/mean 1.35>1.02  5,461 tok/s  1:15 left  lr 2.99e-04  "
            "norm 0.734  60 % peak  memory 1.2 GiB");
  EXPECT_EQ(validation_line(step_of(50, 2.405), 100), "step  50/100  validation loss 2.405");
}

TEST(ProgressLine, of_80_100_and_200_columns_is_the_one_that_the_documents_show) {
  StepMetrics step = step_of(12'345);
  step.plan.tokens = 262'144;
  const std::string page = read_file("docs/demo.md");
  for (const size_t columns : {80, 100, 200}) {
    const std::string line = progress_line(step, 50'000, 2.1 * 86400, columns - 1);
    EXPECT_THAT(page, HasSubstr(fmt::format("    {:>3}: {}\n", columns, line)));
  }
}

TEST(ProgressLine, of_80_columns_says_what_matters_of_the_longest_runs) {
  StepMetrics step = step_of(1'234);
  for (const double tokens_per_s : {99'999.4, 99'999.6, 999'499., 999'501., 99'949'000., 9e9}) {
    step.plan.tokens = std::llround(1e6 * tokens_per_s);
    step.step_s = 1e6;
    EXPECT_THAT(progress_line(step, 100'000, 9.9 * 86400, 79), HasSubstr("9d 21:36 left"));
  }
  step.loss = 11.762;
  step.plan.tokens = 123'456;
  step.step_s = 1;
  EXPECT_EQ(progress_line(step, 100'000, 200'000, 79),
            "step   1234/100000  loss 11.762  max/mean 1.35>1.02  123k tok/s  2d 07:33 left");
  EXPECT_EQ(progress_line(step, 100, 75, 5), "");
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
  EXPECT_THAT(terminal.screen(), ElementsAre("two workers", "step 3/9  validation loss 2.500",
                                             HasSubstr("step 5/9  loss 2.402  max/mean"), ""));
  for (const std::string& line : terminal.screen()) EXPECT_LT(line.size(), 80u);
}

}  // namespace
}  // namespace distca
