// Every step whose time is recorded in bench/results, played again.

#include "bench/recorded_testing.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

namespace distca::bench {
namespace {

TEST(Recorded, steps_take_as_long_as_they_are_played) {
  const std::vector<RecordedStep> steps = recorded_steps(".");
  int close = 0;
  double most = 0;
  for (const RecordedStep& step : steps) {
    const double error = std::fabs(step.error());
    fmt::print("{:+6.1f} %  measured {:7.3f} s  {}{}\n", 100 * step.error(), step.measured_s,
               step.name, error > 0.05 ? "  MISSED" : "");
    close += error <= 0.05 ? 1 : 0;
    most = std::max(most, error);
  }
  fmt::print("{} of {} within 5 %\n", close, steps.size());
  EXPECT_EQ(steps.size(), 118u);
  EXPECT_GE(close, 110);
  EXPECT_LE(most, 0.13);
}

}  // namespace
}  // namespace distca::bench
