#include "distca/train/step_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace distca {
namespace {

using ::testing::HasSubstr;
using Kind = StepOutcome::Kind;

/// After steps whose loss is 5 and whose norms are 0.9, 1.0 and 1.1 in turn.
StepGuard after(int steps, double spike_factor) {
  StepGuard guard(spike_factor);
  for (int i = 0; i < steps; ++i) guard.accept(5, 0.9 + 0.1 * (i % 3));
  return guard;
}

TEST(StepGuard, what_is_not_finite_is_bad_from_the_first_step_on) {
  for (const int steps : {0, 50}) {
    const StepGuard guard = after(steps, 0);
    EXPECT_TRUE(guard.check(5, 1e30).good());
    EXPECT_EQ(guard.check(5, INFINITY).kind, Kind::kNormNotFinite);
    EXPECT_EQ(guard.check(NAN, NAN).kind, Kind::kNormNotFinite);
    EXPECT_EQ(guard.check(NAN, 1).kind, Kind::kLossNotFinite);
    EXPECT_EQ(guard.check(5, NAN).describe(), "the gradient norm is not finite");
  }
}

TEST(StepGuard, a_spike_is_above_the_factor_times_the_median) {
  EXPECT_TRUE(after(StepGuard::kFirst - 1, 4).check(5, 100).good());
  const StepGuard guard = after(StepGuard::kFirst, 4);
  EXPECT_TRUE(guard.check(5, 3.99).good());
  EXPECT_EQ(guard.check(5, 4.01).kind, Kind::kNormSpike);
  EXPECT_EQ(guard.check(20.1, 1).kind, Kind::kLossSpike);
  EXPECT_THAT(guard.check(5, 8).describe(),
              HasSubstr("the gradient norm 8 is 8.0 times the median of the steps before (1)"));
}

TEST(StepGuard, goes_on_from_its_state) {
  const StepGuard guard = after(300, 4);
  const Json state = Json::parse(guard.state().dump());
  EXPECT_EQ(state["norms"].size(), StepGuard::kWindow);
  StepGuard other(4);
  other.restore(JsonField(state, "state", ErrorKind::kCheckpoint));
  EXPECT_EQ(other.state(), guard.state());
  EXPECT_EQ(other.check(5, 5).median, guard.check(5, 5).median);
}

}  // namespace
}  // namespace distca
