#include "bench/overlap_figures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace distca::bench {
namespace {

using testing::HasSubstr;

/// Steps of 1 s with one byte, exchanges of 0.01 s processor time.
OverlapFigures figures_with(ExchangeLength length, double ping_pong_s) {
  OverlapFigures figures{.setting = {.mb_per_s = 25, .length = length, .judged = true}};
  figures.wire_bytes_per_s = 25e6;
  figures.step_bytes = 50'000'000;
  figures.step_s[kOneByteArm] = Rates(kLeastRounds, 1.0);
  figures.step_s[kPingPongArm] = figures.step_s[kAgainArm] = Rates(kLeastRounds, ping_pong_s);
  figures.alone_s = {2, 2, 2};
  figures.used_s = {0.005, 0.012, 0.013};
  figures.idle_shares = {0.001, 0.001, 0.1};
  figures.windows = {{.exchange_s = 0.02, .under_s = 0.03, .longest_s = 0.03}};
  if (length == ExchangeLength::kLonger) figures.windows[0].longest_s = 0.015;
  return figures;
}

TEST(OverlapFigures, the_ideal_is_one_byte_and_the_processor_time) {
  const auto figures = figures_with(ExchangeLength::kShorter, 1.05);
  EXPECT_DOUBLE_EQ(figures.ideal_s()[0], 1.01);
  EXPECT_DOUBLE_EQ(figures.processor_share(), 0.01);
  EXPECT_DOUBLE_EQ(figures.reached(kPingPongArm)[0], 1.01 / 1.05);
}

TEST(OverlapFigures, shorter_exchanges_are_judged_by_the_ideal) {
  EXPECT_EQ(verdict_of(figures_with(ExchangeLength::kShorter, 1.05), {}).decision(),
            Decision::kReached);
  EXPECT_EQ(verdict_of(figures_with(ExchangeLength::kShorter, 1.07), {}).decision(),
            Decision::kMissed);
}

TEST(OverlapFigures, longer_ones_by_the_wire) {
  EXPECT_EQ(verdict_of(figures_with(ExchangeLength::kLonger, 2.09), {}).decision(),
            Decision::kReached);
  EXPECT_EQ(verdict_of(figures_with(ExchangeLength::kLonger, 2.11), {}).decision(),
            Decision::kMissed);
}

TEST(OverlapFigures, a_setting_that_is_not_what_it_should_be_is_not_judged) {
  auto figures = figures_with(ExchangeLength::kShorter, 1.05);
  figures.windows[0].exchange_s = 0.025;
  EXPECT_EQ(verdict_of(figures, {}).decision(), Decision::kShown);
  EXPECT_THAT(verdict_of(figures, {}).why_not_judged, HasSubstr("takes 25.0 ms beside 30.0 ms"));

  figures = figures_with(ExchangeLength::kLonger, 2.05);
  figures.windows[0].longest_s = 0.02;
  EXPECT_EQ(verdict_of(figures, {}).decision(), Decision::kShown);

  figures = figures_with(ExchangeLength::kShorter, 1.05);
  figures.used_s = {0.023};
  EXPECT_THAT(verdict_of(figures, {}).why_not_judged, HasSubstr("2.1 % of compute"));

  figures = figures_with(ExchangeLength::kShorter, 1.05);
  figures.setting.judged = false;
  EXPECT_EQ(verdict_of(figures, {}).decision(), Decision::kShown);
}

TEST(OverlapFigures, processor_time_counts_where_exchanges_are_shorter) {
  auto shorter = figures_with(ExchangeLength::kShorter, 1.05);
  auto longer = figures_with(ExchangeLength::kLonger, 2.05);
  longer.used_s = {0.05};  // more bytes and less compute than at this rate's other setting
  EXPECT_THAT(verdict_of(longer, {}).why_not_judged, HasSubstr("4.8 % of compute"));
  EXPECT_EQ(verdict_of(longer, {shorter, longer}).decision(), Decision::kReached);
  shorter.used_s = {0.04};
  EXPECT_THAT(verdict_of(longer, {shorter, longer}).why_not_judged, HasSubstr("3.8 % of compute"));
  shorter.setting.mb_per_s = 50;
  EXPECT_THAT(verdict_of(longer, {shorter, longer}).why_not_judged, HasSubstr("4.8 % of compute"));
}

TEST(OverlapFigures, settings_are_shorter_and_longer_at_each_rate) {
  const auto settings = overlap_settings({25, 50}, {250, 0});
  std::vector<std::string> judged, shown;
  for (const OverlapSetting& setting : settings)
    (setting.judged ? judged : shown).push_back(setting.name());
  EXPECT_THAT(judged, testing::ElementsAre("25 MB/s shorter", "50 MB/s shorter", "25 MB/s longer",
                                           "50 MB/s longer"));
  EXPECT_THAT(shown,
              testing::ElementsAre("25 MB/s between", "250 MB/s shorter", "unlimited shorter"));
}

}  // namespace
}  // namespace distca::bench
