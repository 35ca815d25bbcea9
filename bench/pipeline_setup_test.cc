#include "bench/paced_step_testing.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "distca/program/validate/validate.h"

namespace distca::bench {
namespace {

constexpr std::array kArms{PipelineArm::kHomePairs, PipelineArm::kHomeSingles,
                           PipelineArm::kAttentionEven, PipelineArm::kWholeEven};

PacedSetting small(int stages, int micro_batches, double share, int replicas = 1) {
  return {.stages = stages,
          .replicas = replicas,
          .micro_batches = micro_batches,
          .attention_share = share,
          .layers = 2};
}

struct Work {
  double linear_s = 0, attention_s = 0;
};

/// The work of all ranks.
Work work_of(const PacedStep& step) {
  Work work;
  for (int rank = 0; rank < step.parts().grid().num_ranks(); ++rank) {
    for (const Op& op : step.program(rank).ops)
      (op.kind == OpKind::kCoreAttention ? work.attention_s : work.linear_s) +=
          step.seconds(rank, op);
  }
  return work;
}

TEST(PipelineSetup, nano_batches_have_as_many_tokens_and_uneven_attention) {
  const PacedSetting setting{.micro_batches = 8};
  const auto lengths = paced_lengths(setting);
  ASSERT_EQ(lengths.size(), 16);
  std::vector<double> pairs;
  for (const std::vector<int64_t>& nano : lengths) {
    EXPECT_EQ(std::accumulate(nano.begin(), nano.end(), int64_t{0}), setting.tokens);
    EXPECT_GT(std::ranges::min(nano), 0);
    double sum = 0;
    for (const int64_t length : nano) sum += static_cast<double>(length) * (length + 1) / 2;
    pairs.push_back(sum);
  }
  EXPECT_GT(std::ranges::max(pairs), 2 * std::ranges::min(pairs));
}

TEST(PipelineSetup, prices_give_attention_its_share_in_every_arm) {
  for (const double share : {0.25, 0.6}) {
    for (const PipelineArm arm : kArms) {
      const Work work = work_of(PacedStep(small(2, 3, share), arm));
      EXPECT_NEAR(work.attention_s / (work.attention_s + work.linear_s), share, 1e-9)
          << arm_name(arm);
    }
  }
}

TEST(PipelineSetup, all_arms_have_the_same_work) {
  for (const int replicas : {1, 2}) {
    const PacedSetting setting = small(2, 2, 0.4, replicas);
    // Tokens at home, three times forward, in every layer of every stage.
    const double linear = 4 * setting.linear_s * 3 * setting.layers * setting.ranks();
    for (const PipelineArm arm : kArms) {
      const PacedStep step(setting, arm);
      const Work work = work_of(step);
      EXPECT_NEAR(work.linear_s, linear, 1e-9) << arm_name(arm);
      EXPECT_NEAR(work.attention_s, linear * 0.4 / 0.6, 1e-9) << arm_name(arm);
      EXPECT_NEAR(step.busy_seconds(), linear / 0.6 / setting.ranks(), 1e-9) << arm_name(arm);
    }
  }
}

TEST(PipelineSetup, programs_of_all_arms_are_valid) {
  for (const PipelineArm arm : kArms) {
    const std::vector<Program> programs = PacedStep(small(4, 3, 0.4), arm).programs();
    EXPECT_THAT(validate(programs), ::testing::IsEmpty()) << arm_name(arm);
  }
}

/// The closed form by hand: n working stages with linear work l each, attention of all of them.
double least_tick(const PacedSetting& setting, const PacedPrices& prices,
                  const BatchLengths& lengths, const Tick& tick, bool is_whole) {
  double least = 0;
  for (int slot = 0; slot < 2; ++slot) {
    double pairs = 0;
    int working = 0;
    for (const TickStage& stage : tick.stages) {
      if (stage.micro_batch < 0) continue;
      ++working;
      for (const int64_t length : lengths[2 * stage.micro_batch + slot])
        pairs += static_cast<double>(length) * (length + 1) / 2;
    }
    const bool forward = tick.stages[0].pass == Pass::kForward;
    const double linear = setting.linear_s * setting.layers * (forward ? 1 : 2);
    const double attention = prices.pair_s * pairs * setting.layers * (forward ? 1 : 2.5);
    least += is_whole ? std::max(linear, (working * linear + attention) / setting.stages)
                      : linear + attention / setting.stages;
  }
  return least;
}

TEST(PipelineSetup, least_ticks_are_the_closed_form) {
  for (const PipelineArm arm : {PipelineArm::kAttentionEven, PipelineArm::kWholeEven}) {
    for (const double share : {0.25, 0.6}) {
      const PacedSetting setting = small(4, 5, share);
      const auto lengths = paced_lengths(setting);
      const PacedPrices prices = paced_prices(setting, lengths);
      const PacedStep step(setting, arm);
      const std::vector<TickFigures> ticks =
          tick_figures(step.parts().request(), *step.parts().ticks_plan());
      const std::vector<Tick> order = aligned_ticks(4, 5, /*trains=*/true);
      ASSERT_EQ(ticks.size(), 2 * (5 + 4 - 1));
      for (size_t i = 0; i < ticks.size(); ++i) {
        const double least =
            least_tick(setting, prices, lengths, order[i], arm == PipelineArm::kWholeEven);
        EXPECT_NEAR(1e-12 * static_cast<double>(ticks[i].ideal_ps), least, 1e-4 * least);
        EXPECT_LE(ticks[i].over_ideal(), 1.03) << arm_name(arm) << ", tick " << i;
      }
    }
  }
}

TEST(PipelineSetup, names_of_settings_differ) {
  std::set<std::string> names;
  for (const int replicas : {1, 2}) {
    for (const double share : {0.25, 0.4}) names.insert(small(4, 8, share, replicas).name());
  }
  EXPECT_EQ(names.size(), 4);
  EXPECT_EQ(*names.begin(), "P = 4, M = 8, attention 0.25");
}

}  // namespace
}  // namespace distca::bench
