#include "distca/report/run_summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace distca {
namespace {

using ::testing::AllOf;
using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

TEST(Summary, counting_says_on_which_text_and_leaves_pairs_out_where_they_mean_nothing) {
  EXPECT_EQ(
      describe_counting({.unigram = 3.25, .bigram = 2.5}),
      "counting single tokens of all the data would give 3.250 (unigram entropy), pairs 2.500 "
      "(bigram entropy), on the very text counted");
  EXPECT_EQ(describe_counting({.unigram = 3.25}),
            "counting single tokens of all the data would give 3.250 (unigram entropy), on the "
            "very text counted");
}

StepMetrics step_of(std::vector<double> measured, std::vector<double> predicted) {
  return {.attention_s = std::move(measured),
          .plan = {.load_before = {3, 4, 5},
                   .load_after = {4, 4, 4},
                   .attention_predicted_s = std::move(predicted),
                   .plan_s = 0.25,
                   .plan_wait_s = 0.125}};
}

TEST(RunSummary, sums_measured_and_predicted_times_and_keeps_each_steps_median_error) {
  RunSummary summary;
  summary.add(step_of({1, 2, 4}, {1.5, 1.5, 8}));  // errors 1/2, 1/4, 1
  summary.add(step_of({0, 2, 1}, {1, 2, 1}));      // one that did nothing
  EXPECT_THAT(summary.sum.attention_s, ElementsAre(1, 4, 5));
  EXPECT_THAT(summary.sum.plan.attention_predicted_s, ElementsAre(2.5, 3.5, 9));
  EXPECT_THAT(summary.prediction_errors, ElementsAre(DoubleEq(0.5), DoubleEq(0)));
  EXPECT_THAT(summary.sum.plan.load_before, ElementsAre(6, 8, 10));
  EXPECT_EQ(summary.sum.plan.plan_s, 0.5);
  EXPECT_EQ(summary.sum.plan.plan_wait_s, 0.25);
}

TEST(RunSummary, a_server_of_several_ranks_takes_as_long_as_its_slowest) {
  RunSummary summary{.num_workers = 2, .ranks_of_server = 2};
  StepMetrics step = step_of({1, 3, 4, 2, 5, 6}, {3, 2, 12});  // errors 0, 1/2, 1
  step.ranks.resize(6);
  step.ranks[1].waited_ns = 1'000'000'000;
  summary.add(step);
  StepMetrics other = step_of({2, 1, 1, 1, 0, 1}, {2, 1, 1});  // others are slowest of their server
  other.ranks.resize(6);
  summary.add(other);
  EXPECT_THAT(summary.sum.attention_s, ElementsAre(3 + 2, 4 + 1, 6 + 1));
  EXPECT_THAT(summary.sum.plan.attention_predicted_s, ElementsAre(5, 3, 13));
  EXPECT_THAT(summary.prediction_errors, ElementsAre(DoubleEq(0.5), DoubleEq(0)));
  EXPECT_THAT(summary.waited_s, SizeIs(6)) << "ranks wait, not servers";
  const std::string lines = attention_times(load_config("", {"plan.profile=h200"}), summary);
  EXPECT_THAT(lines, AllOf(HasSubstr("server  0 in place   measured     5.000 s"),
                           HasSubstr("server  1 in place   measured     5.000 s"),
                           HasSubstr("server  2 dedicated  measured     7.000 s"),
                           Not(HasSubstr("server  3"))));
}

TEST(RunSummary, a_step_without_targets_is_neither_the_first_loss_nor_the_last) {
  RunSummary summary;
  for (const std::optional<double> loss :
       {std::optional<double>(), std::optional(5.5), std::optional(4.5), std::optional<double>()}) {
    StepMetrics step = step_of({1}, {});
    step.loss = loss;
    summary.add(step);
  }
  EXPECT_EQ(summary.first_loss, 5.5);
  EXPECT_EQ(summary.last_loss, 4.5);
  EXPECT_EQ(summary.steps, 4);
}

TEST(RunSummary, without_a_profile_nothing_is_predicted) {
  RunSummary summary;
  summary.add(step_of({1, 2}, {}));
  EXPECT_THAT(summary.sum.attention_s, ElementsAre(1, 2));
  EXPECT_THAT(summary.sum.plan.attention_predicted_s, IsEmpty());
  EXPECT_THAT(summary.prediction_errors, IsEmpty());
}

TEST(StartText, says_of_devices_what_was_measured_and_what_plans_may_take) {
  Config config;
  EXPECT_THAT(device_lines(config, {}), IsEmpty()) << "on the CPU";
  EXPECT_THAT(device_lines(config, {.deterministic_times = 1.4249}),
              ElementsAre("deterministic attention (train.deterministic): its backward takes 1.42 "
                          "times as long as without"));
  config.device_cap_bytes = int64_t{245} << 28;
  EXPECT_THAT(device_lines(config, {}),
              ElementsAre("the smallest of the ranks' devices leaves 61.25 GiB for activations and "
                          "kept keys of a rank (plan.max_memory_gib sets another cap)"));
  const std::string text = start_text(config, "no data", run_grid(config, 1), "aten-cuda",
                                      {.of = "products", .deterministic_times = 2});
  EXPECT_THAT(text, AllOf(HasSubstr("(products)\ndeterministic attention"),
                          HasSubstr("2.00 times as long as without\nthe smallest of")));
}

/// A step of two workers: rank 1 waits half a second of two.
StepMetrics uneven_step() {
  return {
      .step_s = 2,
      .ranks = {{.linear_ns = 1'000'000'000, .attention_ns = 500'000'000, .tokens = 1, .load = 4},
                {.linear_ns = 1'000'000'000, .tokens = 1, .load = 4}},
      .plan = {}};
}

TEST(BalanceText, says_what_ranks_waited) {
  RunSummary summary;
  summary.add(uneven_step());
  summary.add(uneven_step());
  EXPECT_EQ(
      balance_text(summary),
      "\nBalance\n"
      "  ranks waited 12.5 % of the time for messages or for the last rank (rank 1 most, 25.0 "
      "%)\n");
}

TEST(BalanceText, is_empty_for_one_rank) {
  RunSummary one;
  StepMetrics step = uneven_step();
  step.ranks.pop_back();
  one.add(step);
  EXPECT_EQ(balance_text(one), "");
}

class AttentionTimesTest : public ::testing::Test {
 protected:
  AttentionTimesTest() : config_(load_config("", {"plan.profile=h200"})) {
    summary_.num_workers = 2;
    summary_.add(step_of({0.25, 0}, {0.5, 0.125}));
  }
  std::string text() const { return attention_times(config_, summary_); }

  Config config_;
  RunSummary summary_;
};

TEST_F(AttentionTimesTest, say_which_clock_measured_and_whose_profile_predicted) {
  EXPECT_THAT(text(), AllOf(HasSubstr("processor time"), HasSubstr("NVIDIA H200"),
                            HasSubstr("median 100.0 %")));
  config_.train.threads_per_rank = 2;
  EXPECT_THAT(text(), AllOf(HasSubstr("waits for a core included"), HasSubstr("NVIDIA H200")));
}

TEST_F(AttentionTimesTest, on_cuda_are_the_devices_and_compared_as_well) {
  config_.train.device = Config::Train::Device::kCuda;
  EXPECT_THAT(text(),
              AllOf(HasSubstr("the device's time"), HasSubstr("NVIDIA H200"),
                    HasSubstr("measured   250.000 ms  predicted   500.000 ms  (+100.0 %)")));
}

TEST_F(AttentionTimesTest, small_ones_are_in_ms_and_nothing_is_divided_by_zero) {
  EXPECT_THAT(
      text(),
      AllOf(HasSubstr("server  0  measured   250.000 ms  predicted   500.000 ms  (+100.0 %)\n"),
            HasSubstr("server  1  measured     0.000 ms  predicted   125.000 ms\n")));
  summary_.add(step_of({2, 1}, {2, 1}));
  EXPECT_THAT(text(), HasSubstr("server  0  measured     2.250 s  predicted     2.500 s"));
}

TEST_F(AttentionTimesTest, servers_are_named_by_role_where_there_are_two) {
  summary_.num_workers = 1;
  EXPECT_THAT(text(), AllOf(HasSubstr("server  0 in place   measured   250.000 ms"),
                            HasSubstr("server  1 dedicated  measured     0.000 ms")));
  config_.servers.in_place = false;
  EXPECT_THAT(text(), AllOf(HasSubstr("server  0 worker     measured   250.000 ms"),
                            HasSubstr("server  1 dedicated  measured     0.000 ms")));
}

}  // namespace
}  // namespace distca
