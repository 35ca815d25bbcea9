// `distca train` from end to end: what plans are made with, recorded, and no loss changes by it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "tests/run_command.h"
#include "tests/training_testing.h"

namespace distca::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class PlansOfTrainingTest : public TrainingTest {};

TEST_F(PlansOfTrainingTest, kept_and_resent_keys_give_the_same_bits_and_memory_chooses) {
  const Words two = {"--workers", "2", "comm.backend=threads"};
  const auto redispatched = [&](const char* name) {
    int64_t sum = 0;
    for (const Json& line : metrics(name))
      sum += line.at("nano_batches_redispatched").get<int64_t>();
    return sum;
  };
  const Training kept = train("kept", joined(two, {"exchange.keys=keep"}));
  const Training again = train("redispatched", joined(two, {"exchange.keys=redispatch"}));
  expect_same_bits(again, kept);
  EXPECT_GT(again.bytes_sent, kept.bytes_sent);
  EXPECT_EQ(redispatched("kept"), 0);
  EXPECT_EQ(redispatched("redispatched"), 6 * 2);
  expect_same_bits(train("auto", two), kept);
  EXPECT_EQ(redispatched("auto"), 0) << "without a cap";
  // Some batches keep their keys within it, others cannot.
  expect_same_bits(train("cap", joined(two, {"plan.max_memory_gib=0.00195"})), kept);
  EXPECT_GT(redispatched("cap"), 0);
  EXPECT_LT(redispatched("cap"), 6 * 2);
}

TEST_F(PlansOfTrainingTest, what_is_computed_again_takes_no_memory_and_changes_no_bit) {
  const auto peak = [&](const char* name) {
    const std::vector<int64_t> bytes = metrics(name).back().at("peak_bytes");
    return std::ranges::max(bytes);
  };
  const Words two = {"--workers", "2", "comm.backend=threads"};
  const Training kept = train("none", two);
  for (const char* recompute : {"selective", "full"})
    expect_same_bits(train(recompute, joined(two, {fmt::format("train.recompute={}", recompute)})),
                     kept);
  EXPECT_LT(peak("selective"), peak("none"));
  EXPECT_LT(peak("full"), peak("selective"));
}

TEST_F(PlansOfTrainingTest, with_a_profile_predicted_attention_times_stand_beside_measured_ones) {
  const Outcome outcome =
      succeed(arguments({"--workers", "3", "comm.backend=threads", "plan.profile=h200"}));
  for (const Json& line : metrics()) {
    for (const char* name : {"attention_s", "attention_predicted_s"}) {
      ASSERT_EQ(line.at(name).size(), 3u) << name;
      for (const Json& seconds : line.at(name)) EXPECT_GT(seconds, 0) << name;
    }
    EXPECT_THAT(line.at("price").get<std::string>(), HasSubstr("NVIDIA H200 (analytic)"));
  }
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("processor time; predicted by the profile of NVIDIA H200"),
                    HasSubstr("server  2  measured"),
                    HasSubstr("relative error of a server's predicted time")));
}

TEST_F(PlansOfTrainingTest, measured_speeds_enter_plans_as_recorded_values_and_change_no_loss) {
  const Training one = train("one", {"model.dtype=float64", "--workers", "1"});
  // Validation batches in between or not: speeds hold from the step that was said.
  for (const char* every : {"1", "3"}) {
    const Training weighed = train(
        every, {"model.dtype=float64", "comm.backend=threads", "--workers", "2",
                "servers.dedicated=1", "servers.reweight=true", "plan.tolerance=auto",
                "train.deterministic=false", fmt::format("train.validation_every={}", every)});
    expect_near(weighed.losses, one.losses, 1e-10, "loss");
    std::map<int64_t, Json> recorded;  // by the step from which they hold
    for (const Json& line : metrics(every)) {
      const int64_t step = line.at("step");
      EXPECT_FALSE(line.at("chosen").empty());
      if (line.contains("speeds")) {
        const int64_t from_step = line.at("speeds").at("from_step");
        EXPECT_EQ(from_step, step == 1 ? 1 : step + 2);
        recorded[from_step] = line.at("speeds");
      }
      ASSERT_TRUE(recorded.contains(1)) << "nothing in the first line";
      EXPECT_EQ(line.at("speeds_from_step"), std::prev(recorded.upper_bound(step))->first);
    }
    ASSERT_GT(recorded.size(), 1u);
    for (const auto& [from_step, speeds] : recorded) {
      EXPECT_GT(speeds.at("bytes_per_us"), 0) << "plan.tolerance weighs with it from step 1 on";
      EXPECT_EQ(speeds.contains("linear_ps_per_token"), from_step > 1);
      if (from_step == 1) continue;
      EXPECT_EQ(speeds.at("linear_ps_per_token").size(), 3u);
      EXPECT_GT(speeds.at("linear_ps_per_token").at(1), 0);
      EXPECT_EQ(speeds.at("linear_ps_per_token").at(2), 0) << "a dedicated server has no tokens";
      int64_t attention = 0;
      for (const Json& rank : speeds.at("attention_ps_per_kload")) attention += rank.get<int64_t>();
      EXPECT_GT(attention, 0);
    }
  }
}

TEST_F(PlansOfTrainingTest, frozen_runs_with_an_automatic_tolerance_repeat_bit_for_bit) {
  const Words options = {"--workers", "2", "plan.tolerance=auto", "plan.bandwidth_mb_per_s=20",
                         "comm.backend=threads"};
  const Training first = train("first", options);
  expect_same_bits(train("second", options), first);
  for (const Json& line : metrics("first")) {
    EXPECT_FALSE(line.contains("speeds"));
    EXPECT_FALSE(line.contains("speeds_from_step"));
    EXPECT_FALSE(line.at("chosen").empty());
  }
}

}  // namespace
}  // namespace distca::testing
