#include "distca/report/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <array>
#include <chrono>
#include <sstream>
#include <thread>

#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/base/test_terminal.h"

namespace distca {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A step of a run of 100 steps.
ShownStep step_of(int64_t step, std::optional<double> validation = std::nullopt) {
  return {.step = step,
          .total_steps = 100,
          .is_last = step == 100,
          .time_s = 1e9 + static_cast<double>(step),
          .left_s = 75,
          .loss = 2.4021,
          .grad_norm = 0.73412,
          .lr = 0.00029871,
          .imbalance_before = 1.354,
          .imbalance_after = 1.02,
          .tokens_per_s = 5461.3,
          .share_of_peak = 0.6,
          .memory_bytes = 5 << 28,
          .validation_loss = validation};
}

/// A step of a long run.
ShownStep long_step(double tokens_per_s, double left_s) {
  ShownStep step = step_of(1'234);
  step.total_steps = 100'000;
  step.tokens_per_s = tokens_per_s;
  step.left_s = left_s;
  return step;
}

/// A line of metrics.jsonl, as little of it as is shown.
Json line_of() {
  return {{"step", 7},
          {"train_steps", 9},
          {"time", "2026-11-23T02:13:05.123Z"},
          {"time_left_s", 61.5},
          {"loss", nullptr},
          {"grad_norm", 0.5},
          {"lr", 1e-3},
          {"imbalance_before", 1.5},
          {"imbalance_after", 1.25},
          {"tokens_per_s", 1000.0},
          {"share_of_peak", 0.25},
          {"tensor_bytes", {1 << 20, 3 << 20, 2 << 20}}};
}

TEST(ClockTime, is_as_long_as_it_must_be) {
  EXPECT_EQ(clock_time(-1), "0:00");
  EXPECT_EQ(clock_time(7.4), "0:07");
  EXPECT_EQ(clock_time(3599), "59:59");
  EXPECT_EQ(clock_time(3600), "1:00:00");
  EXPECT_EQ(clock_time(2 * 86400 - 1), "1d 23:59");
  EXPECT_EQ(clock_time(2 * 86400 + 3 * 3600 + 15 * 60 + 59), "2d 03:15");
}

TEST(ShownStep, is_what_a_line_says) {
  Json line = line_of();
  ShownStep step = shown_step(line, "m");
  EXPECT_EQ(progress_line(step, 200),
            "step 7/9  loss nan  max/mean 1.50>1.25  1,000 tok/s  1:02 left  lr 1.00e-03  "
            "norm 0.5  25 % peak  memory 3.0 MiB");
  EXPECT_FALSE(step.is_last);
  line["ended_by"] = "train.exit_duration_in_mins";
  EXPECT_TRUE(shown_step(line, "m").is_last);
  line.erase("ended_by");
  line["train_steps"] = 7;
  EXPECT_TRUE(shown_step(line, "m").is_last);
  line["train_steps"] = 9;
  line["targets"] = 9;
  EXPECT_THAT(progress_line(shown_step(line, "m"), 200), HasSubstr("  loss nan  "));
  line["targets"] = 0;  // there is none
  EXPECT_THAT(progress_line(shown_step(line, "m"), 200), HasSubstr("  loss -  "));
  EXPECT_NEAR(step.time_s, 1'795'399'985.123, 1e-3);
  EXPECT_FALSE(step.validation_loss);
  line["validation_loss"] = 2.5;
  EXPECT_EQ(validation_lines(shown_step(line, "m")), "step 7/9  validation loss 2.500");
}

TEST(ShownStep, has_the_validation_loss_by_position_where_there_are_several_bands) {
  Json line = line_of();
  line["validation_loss"] = 2.5;
  Json& bands = line["validation_loss_by_position"];
  const auto add = [&](int64_t begin, int64_t end, const Json& loss) {
    bands.push_back({{"begin", begin}, {"end", end}, {"loss", loss}, {"targets", 9}});
  };
  add(0, 1 << 10, 2.75);
  EXPECT_EQ(validation_lines(shown_step(line, "m")), "step 7/9  validation loss 2.500");
  add(1 << 10, 1 << 12, 2.5);
  add(1 << 16, 1 << 18, nullptr);
  add(1 << 18, 1 << 20, 2.25);
  add(1 << 20, 1 << 22, 2.125);
  EXPECT_EQ(validation_lines(shown_step(line, "m")),
            "step 7/9  validation loss 2.500\n"
            "  by position  0-1K 2.750  1-4K 2.500  64-256K nan  256K-1M 2.250  1-4M 2.125");
}

TEST(ShownStep, is_refused_where_a_line_is_no_runs) {
  const auto refused = [](const Json& line) -> std::string {
    try {
      shown_step(line, "m line 3");
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refused(Json::array()), "m line 3: it must be an object, not []");
  Json line = line_of();
  line["time"] = "noon";
  EXPECT_THAT(refused(line), HasSubstr("time must be a time such as 2026-"));
  for (const char* name : {"step", "train_steps", "time", "time_left_s", "loss", "tokens_per_s"}) {
    line = line_of();
    line.erase(name);
    EXPECT_EQ(refused(line), fmt::format("m line 3: {} is missing", name));
  }
}

TEST(ProgressLine, has_what_matters_first_and_the_validation_loss_beside_it) {
  EXPECT_EQ(progress_line(step_of(50, 2.405), 1000),
            "step  50/100  loss 2.402  max/mean 1.35>1.02  5,461 tok/s  1:15 left  lr 2.99e-04  "
            "norm 0.734  60 % peak  memory 1.2 GiB");
  EXPECT_EQ(validation_lines(step_of(50, 2.405)), "step  50/100  validation loss 2.405");
}

TEST(ProgressLine, of_80_100_and_200_columns_is_the_one_that_the_documents_show) {
  ShownStep step = long_step(174'762, 2.1 * 86400);
  step.step = 12'345;
  step.total_steps = 50'000;
  const std::string page = read_file("docs/demo.md");
  for (const size_t columns : {80, 100, 200}) {
    const std::string line = progress_line(step, columns - 1);
    EXPECT_THAT(page, HasSubstr(fmt::format("    {:>3}: {}\n", columns, line)));
  }
}

TEST(ProgressLine, of_80_columns_says_what_matters_of_the_longest_runs) {
  for (const double tokens_per_s : {99'999.4, 99'999.6, 999'499., 999'501., 99'949'000., 9e9}) {
    EXPECT_THAT(progress_line(long_step(tokens_per_s, 9.9 * 86400), 79),
                HasSubstr("9d 21:36 left"));
  }
  ShownStep step = long_step(123'456, 200'000);
  step.loss = 11.762;
  EXPECT_EQ(progress_line(step, 79),
            "step   1234/100000  loss 11.762  max/mean 1.35>1.02  123k tok/s  2d 07:33 left");
  EXPECT_EQ(progress_line(step, 5), "");
}

TEST(ProgressLine, of_step_1_guesses_how_long_the_rest_takes) {
  EXPECT_THAT(progress_line(step_of(1), 1000), HasSubstr("  ~1:15 left  "));
  ShownStep only = step_of(1);
  only.total_steps = 1;
  EXPECT_THAT(progress_line(only, 1000), HasSubstr("  1:15 left  "));
}

TEST(TimeLeft, counts_from_the_end_of_the_first_step) {
  TimeLeft left(11, 1010);
  // Its own 1000 s for the other 999.
  EXPECT_EQ(left.after(11, 1000), 1000 * 999);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  // The next took 50 ms and some, not what the first did.
  const double rest = left.after(12, 1000);
  EXPECT_GE(rest, 0.05 * 998);
  EXPECT_LT(rest, 1000 * 998);
}

TEST(Progress, on_a_terminal_keeps_lines_with_a_validation_loss_and_the_last_one) {
  TestTerminal terminal;
  {
    Console console(terminal.fd());
    Progress progress(console);
    console.line("two workers");
    for (int step = 1; step <= 5; ++step) {
      progress.show(step_of(step, step == 3 ? std::optional(2.5) : std::nullopt));
      console.finish(200);
    }
  }
  EXPECT_THAT(terminal.screen(), ElementsAre("two workers", "step   3/100  validation loss 2.500",
                                             HasSubstr("step   5/100  loss 2.402  max/mean"), ""));
  for (const std::string& line : terminal.screen()) EXPECT_LT(line.size(), 80u);
}

TEST(Progress, elsewhere_has_a_line_every_five_seconds_of_each_validation_and_of_the_last_step) {
  std::array<int, 2> pipe_ends{};
  ASSERT_EQ(pipe(pipe_ends.data()), 0);
  {
    Console console(pipe_ends[1]);
    Progress progress(console);
    for (const int64_t step : {1, 2, 6, 7, 8, 9}) {  // a second each
      ShownStep shown = step_of(step, step == 7 ? std::optional(2.5) : std::nullopt);
      shown.is_last = step == 9;
      progress.show(shown);
    }
    console.finish(200);
  }
  close(pipe_ends[1]);
  std::string text(4096, '\0');
  text.resize(static_cast<size_t>(read(pipe_ends[0], text.data(), text.size())));
  close(pipe_ends[0]);
  std::vector<std::string> steps;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) steps.push_back(line.substr(0, 19));
  EXPECT_THAT(steps,
              ElementsAre("step   1/100  loss ", "step   6/100  loss ", "step   7/100  valid",
                          "step   7/100  loss ", "step   9/100  loss "));
}

}  // namespace
}  // namespace distca
