#include "distca/train/exit_time.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>

#include "distca/base/clock.h"
#include "distca/base/error.h"

namespace distca {
namespace {

constexpr double kBegin = 1000;

/// A minute, in which nothing is measured or written but a model that takes no time.
Config one_minute() {
  Config config;
  config.train.exit_duration_in_mins = 1;
  config.train.validation_nano_batches = 6;
  config.batch.nano_batches = 2;
  config.model.vocab_size = config.model.hidden_size = config.model.head_dim = 8;
  config.model.intermediate_size = 8;
  config.model.num_hidden_layers = 1;
  return config;
}

/// How a run of equal steps goes.
struct Played {
  double step_s = 4;
  bool evaluates = false;
  double last_save_s = 0;
};

/// The second of the minute at which the last step ends. One second is left for what is not
/// measured.
double ends_at(ExitTime exit_time, const Played& played) {
  double now_s = 0;
  do now_s += played.step_s;
  while (!exit_time.is_last(kBegin + now_s, played.step_s, played.evaluates, played.last_save_s));
  return now_s;
}

TEST(ExitTime, no_limit_never_ends_a_run) {
  Config config = one_minute();
  config.train.exit_duration_in_mins = 0;
  ExitTime exit_time(config, kBegin, true, 1);
  EXPECT_FALSE(exit_time.is_last(kBegin + 1e9, 1e9, true, 1e9));
  EXPECT_TRUE(std::isinf(exit_time.left_s(kBegin + 1e9)));
}

TEST(ExitTime, the_last_step_is_the_last_that_fits) {
  ExitTime exit_time(one_minute(), kBegin, /*validates=*/false, 1);
  EXPECT_EQ(exit_time.left_s(kBegin + 20), 40);
  EXPECT_EQ(exit_time.left_s(kBegin + 80), 0);
  EXPECT_EQ(ends_at(exit_time, {.step_s = 7}), 56);
  EXPECT_EQ(ends_at(exit_time, {.step_s = 61}), 61) << "one step is always played";
}

TEST(ExitTime, a_step_is_as_long_as_the_longest_of_the_last_ten_without_the_first) {
  ExitTime exit_time(one_minute(), kBegin, /*validates=*/false, 1);
  EXPECT_TRUE(exit_time.is_last(kBegin + 31, 31, false, 0)) << "no other one is known";
  EXPECT_FALSE(exit_time.is_last(kBegin + 40, 9, false, 0));
  for (int i = 0; i < 9; ++i) EXPECT_TRUE(exit_time.is_last(kBegin + 52, 1, false, 0)) << i;
  EXPECT_FALSE(exit_time.is_last(kBegin + 52, 1, false, 0)) << "that of 9 s is no longer recent";
  EXPECT_TRUE(exit_time.is_last(kBegin + 59.5, 1, false, 0));
}

TEST(ExitTime, leaves_time_for_the_validation_loss) {
  // Three times the tokens of a step, each in at most half of its time: one and a half steps.
  ExitTime exit_time(one_minute(), kBegin, /*validates=*/true, 1);
  EXPECT_EQ(ends_at(exit_time, {}), 52);
  EXPECT_EQ(ends_at(exit_time, {.evaluates = true}), 44) << "after each step and after the last";
  exit_time.evaluated(1);
  EXPECT_EQ(ends_at(exit_time, {}), 56) << "it was measured";
}

TEST(ExitTime, leaves_time_for_the_checkpoint_and_the_weights) {
  Config config = one_minute();
  const auto ends = [&](int workers, double last_save_s) {
    return ends_at(ExitTime(config, kBegin, false, workers), {.last_save_s = last_save_s});
  };
  EXPECT_EQ(ends(1, 20), 36) << "as long as the last save took";
  config.checkpoint.async = false;
  EXPECT_EQ(ends(1, 20), 36) << "no other one comes";
  config.checkpoint.every_steps = 1;
  EXPECT_EQ(ends(1, 20), 16) << "the next step waits for one, too";
  config.checkpoint = {};
  // 400 million parameters: 8 s for 1.6 GB, and three times as many bytes of all workers together.
  config.model.vocab_size = 25'000'000;
  EXPECT_EQ(ends(4, 0), 44);
  EXPECT_EQ(ends(1, 0), 24);
  EXPECT_EQ(ends(1, 4), 44) << "a save was measured";
  config.model.dtype = ScalarType::kFloat64;
  EXPECT_EQ(ends(4, 0), 28);
}

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

TEST(LaunchBegin, is_on_the_clock_of_this_process_and_never_to_come) {
  const double now_s = steady_seconds();
  const double hour_ago_s = launch_begin_s(fmt::format("{:.3f}", unix_seconds() - 3600));
  EXPECT_NEAR(hour_ago_s, now_s - 3600, 60) << "whoever has put the clock back meanwhile";
  for (const auto& given : {std::optional<std::string>(), std::optional(std::string("1e18"))}) {
    const double begin_s = launch_begin_s(given);
    EXPECT_GE(begin_s, now_s);
    EXPECT_LE(begin_s, steady_seconds());
  }
}

TEST(LaunchBegin, refuses_what_is_no_number) {
  for (const char* wrong : {"yesterday", "12:30", "1e999", "nan", " 5"}) {
    try {
      launch_begin_s(wrong);
      FAIL() << wrong;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_EQ(error.what(), fmt::format("DISTCA_STARTED_AT = {}: Unix seconds, as date +%s gives "
                                          "them",
                                          wrong));
    }
  }
}

}  // namespace
}  // namespace distca
