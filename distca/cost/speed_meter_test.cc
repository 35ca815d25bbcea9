#include "distca/cost/speed_meter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "distca/base/random.h"

namespace distca {
namespace {

using ::testing::ElementsAre;

/// A worker at 2000 ps a token and 700 ps a thousand of load, times `slowness`.
RankSample sample(double slowness = 1) {
  return {.linear_ns = std::llround(1'000'000 * slowness),
          .attention_ns = std::llround(3'500'000 * slowness),
          .tokens = 500'000,
          .load = 5'000'000'000};
}

/// Steps alike; whether speeds changed after the last.
bool add_steps(SpeedMeter& meter, int64_t& step, int count,
               const std::vector<RankSample>& samples) {
  bool changed = false;
  for (int i = 0; i < count; ++i) changed = meter.add(++step, samples);
  return changed;
}

TEST(SpeedMeter, says_nothing_of_the_first_steps_then_what_was_measured) {
  SpeedMeter meter(2, 77);
  int64_t step = 0;
  // The first step is cold.
  EXPECT_FALSE(add_steps(meter, step, 1, {sample(9), sample(5)}));
  EXPECT_FALSE(add_steps(meter, step, 1, {sample(), sample(2)}));
  EXPECT_TRUE(meter.speeds().ranks.empty());
  EXPECT_TRUE(add_steps(meter, step, 1, {sample(), sample(2)}));
  EXPECT_THAT(meter.speeds().ranks, ElementsAre(RankSpeed{2'000, 700}, RankSpeed{4'000, 1'400}));
  EXPECT_EQ(meter.speeds().from_step, 5);  // step 4 is planned
  EXPECT_EQ(meter.speeds().bytes_per_us, 77);
  EXPECT_FALSE(add_steps(meter, step, 10, {sample(), sample(2)}));
}

TEST(SpeedMeter, new_speeds_hold_from_the_step_that_they_say_and_the_old_ones_until_then) {
  SpeedMeter meter(1, 77);
  int64_t step = 0;
  const Speeds at_first = meter.speeds_at(1);
  EXPECT_EQ(at_first, (Speeds{.from_step = 1, .ranks = {}, .bytes_per_us = 77}));
  add_steps(meter, step, 3, {sample()});
  EXPECT_EQ(meter.speeds_at(4), at_first);
  const Speeds second = meter.speeds_at(5);
  EXPECT_EQ(second.from_step, 5);
  EXPECT_THAT(second.ranks, ElementsAre(RankSpeed{2'000, 700}));
  add_steps(meter, step, 3, {sample(2)});
  EXPECT_EQ(meter.speeds_at(7), second);
  EXPECT_EQ(meter.speeds_at(8).from_step, 8);
  EXPECT_THAT(meter.speeds_at(9).ranks, ElementsAre(RankSpeed{4'000, 1'400}));
}

TEST(SpeedMeter, rounds_to_three_digits) {
  SpeedMeter meter(1, 0);
  int64_t step = 0;
  add_steps(meter, step, 3,
            {{.linear_ns = 123'456'000, .attention_ns = 7, .tokens = 10'000, .load = 900'000'000}});
  EXPECT_THAT(meter.speeds().ranks, ElementsAre(RankSpeed{12'300'000, 1}));
}

TEST(SpeedMeter, does_not_know_what_a_rank_never_did) {
  SpeedMeter meter(2, 0);
  int64_t step = 0;
  RankSample server = sample();
  server.linear_ns = server.tokens = 0;
  RankSample idle = sample();
  idle.attention_ns = idle.load = 0;
  add_steps(meter, step, 3, {idle, server});
  EXPECT_THAT(meter.speeds().ranks, ElementsAre(RankSpeed{2'000, 0}, RankSpeed{0, 700}));
  // From its first load on.
  EXPECT_TRUE(add_steps(meter, step, 1, {sample(), server}));
  EXPECT_THAT(meter.speeds().ranks, ElementsAre(RankSpeed{2'000, 700}, RankSpeed{0, 700}));
}

TEST(SpeedMeter, is_not_moved_by_one_or_two_steps_that_are_off) {
  SpeedMeter meter(2, 0);
  int64_t step = 0;
  add_steps(meter, step, 5, {sample(), sample()});
  const Speeds before = meter.speeds();
  for (const double slowness : {20.0, 0.5, 3.0, 0.1}) {
    EXPECT_FALSE(add_steps(meter, step, 2, {sample(), sample(slowness)}));
    EXPECT_FALSE(add_steps(meter, step, 1, {sample(), sample()}));
  }
  // Off on both sides in turn is noise, too.
  for (const double slowness : {2.0, 0.5, 2.0, 0.5, 2.0, 0.5}) {
    EXPECT_FALSE(add_steps(meter, step, 1, {sample(), sample(slowness)}));
  }
  EXPECT_EQ(meter.speeds(), before);
}

TEST(SpeedMeter, follows_a_rank_that_becomes_slow_after_three_steps) {
  SpeedMeter meter(2, 0);
  int64_t step = 0;
  add_steps(meter, step, 50, {sample(), sample()});
  EXPECT_FALSE(add_steps(meter, step, 2, {sample(), sample(2)}));
  EXPECT_TRUE(add_steps(meter, step, 1, {sample(), sample(2)}));
  EXPECT_THAT(meter.speeds().ranks, ElementsAre(RankSpeed{2'000, 700}, RankSpeed{4'000, 1'400}));
  EXPECT_EQ(meter.speeds().from_step, step + 2);
}

TEST(SpeedMeter, follows_a_slow_drift) {
  SpeedMeter meter(1, 0);
  int64_t step = 0;
  add_steps(meter, step, 5, {sample()});
  int changes = 0;
  for (int i = 1; i <= 100; ++i) changes += meter.add(++step, std::vector{sample(1 + 0.005 * i)});
  EXPECT_NEAR(static_cast<double>(meter.speeds().ranks[0].linear_ps_per_token), 3'000, 150);
  EXPECT_LT(changes, 20);  // not with every step
}

TEST(SpeedMeter, goes_on_from_its_state) {
  const auto sample = [](int64_t step, int rank) {
    return RankSample{.linear_ns = 1'000'000 * (step % 5 + 3) * (rank + 1),
                      .attention_ns = 300'000 * (step % 3 + 1),
                      .tokens = 1000,
                      .load = 2'000'000};
  };
  SpeedMeter meter(2, 7);
  for (int64_t step = 1; step <= 40; ++step) {
    SpeedMeter other(2, 9);
    ASSERT_TRUE(other.restore(meter.state()));
    EXPECT_EQ(other.state(), meter.state());
    const std::vector<RankSample> samples = {sample(step, 0), sample(step, 1)};
    EXPECT_EQ(other.add(step, samples), meter.add(step, samples));
    EXPECT_EQ(other.speeds_at(step + 1), meter.speeds_at(step + 1));
    EXPECT_EQ(other.speeds_at(step + 2), meter.speeds_at(step + 2));
  }
  EXPECT_FALSE(SpeedMeter(3, 7).restore(meter.state()));
  SpeedMeter measured(2, 9);  // before, no bandwidth was measured
  ASSERT_TRUE(measured.restore(SpeedMeter(2, 0).state()));
  EXPECT_EQ(measured.speeds_at(1).bytes_per_us, 9);
  std::vector<int64_t> cut = meter.state();
  cut.pop_back();
  EXPECT_FALSE(meter.restore(cut));
  EXPECT_FALSE(meter.restore({}));
}

TEST(SpeedMeter, gives_the_same_whatever_the_largest_numbers) {
  SpeedMeter meter(1, 0);
  int64_t step = 0;
  constexpr int64_t kLong = int64_t{1} << 50;
  add_steps(meter, step, 100,
            {{.linear_ns = kLong, .attention_ns = kLong, .tokens = 1, .load = kLong}});
  EXPECT_EQ(meter.speeds().ranks[0].attention_ps_per_kload, 1'000'000);
  EXPECT_GT(meter.speeds().ranks[0].linear_ps_per_token, kLong);
}

/// A machine whose ranks take their own time, noise included, for the shares they get: what a
/// training does with SpeedMeter and even_capacities.
class Machine {
 public:
  Machine(std::vector<RankSpeed> truth, int num_workers, BalanceTarget balance_target)
      : truth_(std::move(truth)),
        num_workers_(num_workers),
        evenness_(balance_target),
        meter_(static_cast<int>(truth_.size()), 0) {}

  void slow_down(int rank, int64_t factor) {
    truth_[rank].linear_ps_per_token *= factor;
    truth_[rank].attention_ps_per_kload *= factor;
  }
  void speed_up(int rank, int64_t factor) {
    truth_[rank].linear_ps_per_token /= factor;
    truth_[rank].attention_ps_per_kload /= factor;
  }

  /// One step: the latest finish over the earliest possible.
  double step() {
    const int num_servers = static_cast<int>(truth_.size());
    const std::vector<int64_t> capacity =
        even_capacities(work_of_step(meter_.speeds_at(steps_ + 1), num_workers_, num_servers,
                                     /*in_place=*/true, kTokens),
                        evenness_, kLoad);
    const int64_t sum = std::accumulate(capacity.begin(), capacity.end(), int64_t{0});
    std::vector<RankSample> samples;
    double latest = 0;
    for (int rank = 0; rank < num_servers; ++rank) {
      RankSample sample{.tokens = rank < num_workers_ ? kTokens : 0,
                        .load = kLoad / sum * capacity[rank] / kBlockLoad * kBlockLoad};
      const double linear = static_cast<double>(truth_[rank].linear_ps_per_token * sample.tokens);
      const double attention =
          static_cast<double>(truth_[rank].attention_ps_per_kload) *
          static_cast<double>((sample.load > 0 ? kLaunchLoad : 0) + sample.load) / 1000;
      latest =
          std::max(latest, evenness_ == BalanceTarget::kWhole ? linear + attention : attention);
      sample.linear_ns = std::llround(linear / 1000 * noise());
      sample.attention_ns = std::llround(attention / 1000 * noise());
      samples.push_back(sample);
    }
    changes_ += meter_.add(++steps_, samples) ? 1 : 0;
    return latest / best();
  }
  int changes() const { return changes_; }

 private:
  static constexpr int64_t kTokens = 4096;
  static constexpr int64_t kLoad = 100'000'000;
  static constexpr int64_t kBlockLoad = kLoad / 2000;  // tasks are cut into whole blocks
  static constexpr int64_t kLaunchLoad = kLoad / 500;  // fixed cost of having any tasks

  /// A few per cent, now and then a step that is far off.
  double noise() {
    const double few = 0.97 + 0.06 * static_cast<double>(random_.below(1000)) / 1000;
    return random_.below(25) == 0 ? 2.5 * few : few;
  }
  /// All finish together, in fractions: half the interval a time.
  double best() const {
    double low = 0, high = 1e18;
    for (int i = 0; i < 200; ++i) {
      const double middle = (low + high) / 2;
      double done = 0;
      for (size_t rank = 0; rank < truth_.size(); ++rank) {
        const bool counts =
            evenness_ == BalanceTarget::kWhole && static_cast<int>(rank) < num_workers_;
        const double linear =
            counts ? static_cast<double>(truth_[rank].linear_ps_per_token * kTokens) : 0;
        done += std::max(0.0, middle - linear) * 1000 /
                static_cast<double>(truth_[rank].attention_ps_per_kload);
      }
      (done < static_cast<double>(kLoad) ? low : high) = middle;
    }
    return high;
  }

  std::vector<RankSpeed> truth_;
  const int num_workers_;
  const BalanceTarget evenness_;
  SpeedMeter meter_;
  Random random_{7};
  int64_t steps_ = 0;
  int changes_ = 0;
};

TEST(SpeedMeter, makes_uneven_machines_finish_together_within_few_steps_and_stay) {
  for (const BalanceTarget balance_target : {BalanceTarget::kAttention, BalanceTarget::kWhole}) {
    for (const int dedicated : {0, 1}) {
      std::vector<RankSpeed> truth{
          {3'000'000, 700'000}, {6'000'000, 1'400'000}, {4'000'000, 600'000}};
      truth.resize(truth.size() + dedicated, {0, 900'000});
      Machine machine(truth, 3, balance_target);
      EXPECT_GT(machine.step(), 1.2) << "uneven as long as nothing is known";
      for (int i = 0; i < 10; ++i) machine.step();
      double worst = 1;
      for (int i = 0; i < 100; ++i) worst = std::max(worst, machine.step());
      EXPECT_LT(worst, 1.05);
      EXPECT_LE(machine.changes(), 10);

      machine.slow_down(0, 2);
      EXPECT_GT(machine.step(), 1.15);
      for (int i = 0; i < 10; ++i) machine.step();
      const int changes = machine.changes();
      worst = 1;
      for (int i = 0; i < 100; ++i) worst = std::max(worst, machine.step());
      EXPECT_LT(worst, 1.05);
      EXPECT_LE(machine.changes() - changes, 10);
    }
  }
}

TEST(SpeedMeter, a_server_that_was_slow_for_ten_steps_gets_its_share_back) {
  for (const BalanceTarget balance_target : {BalanceTarget::kAttention, BalanceTarget::kWhole}) {
    for (const int64_t slowness : {4, 30, 5'000}) {
      Machine machine({{3'000'000, 700'000}, {3'000'000, 700'000}, {3'000'000, 700'000}}, 3,
                      balance_target);
      for (int i = 0; i < 20; ++i) machine.step();
      machine.slow_down(0, slowness);
      for (int i = 0; i < 10; ++i) machine.step();
      machine.speed_up(0, slowness);
      EXPECT_GT(machine.step(), 1.2) << "others have its share";
      for (int i = 0; i < 60; ++i) machine.step();
      double worst = 1;
      for (int i = 0; i < 100; ++i) worst = std::max(worst, machine.step());
      EXPECT_LT(worst, 1.05) << slowness;
    }
  }
}

TEST(SpeedMeter, a_server_that_stays_slow_is_not_tried_again_and_again) {
  for (const BalanceTarget balance_target : {BalanceTarget::kAttention, BalanceTarget::kWhole}) {
    Machine machine({{3'000'000, 700'000}, {3'000'000, 700'000}, {3'000'000, 14'000'000}}, 3,
                    balance_target);
    for (int i = 0; i < 20; ++i) machine.step();
    const int changes = machine.changes();
    double worst = 1;
    for (int i = 0; i < 200; ++i) worst = std::max(worst, machine.step());
    EXPECT_LT(worst, 1.1);
    EXPECT_LE(machine.changes() - changes, 10);
  }
}

TEST(SecondsWaited, are_those_for_messages_and_for_the_last_rank) {
  constexpr int64_t kMs = 1'000'000;  // ns
  const std::vector<RankSample> ranks = {
      {.linear_ns = 210 * kMs, .attention_ns = 300 * kMs, .waited_ns = 40 * kMs},
      {.linear_ns = 200 * kMs, .attention_ns = 150 * kMs, .waited_ns = 100 * kMs}};
  // The last one is done after 550 ms; rank 1 after 450.
  EXPECT_THAT(seconds_waited(ranks), ElementsAre(::testing::DoubleNear(0.040, 1e-12),
                                                 ::testing::DoubleNear(0.200, 1e-12)));
  EXPECT_THAT(seconds_waited({}), ::testing::IsEmpty());
}

}  // namespace
}  // namespace distca
