#include "distca/cost/finish_time.h"

#include <gtest/gtest.h>

#include "distca/base/random.h"

namespace distca {
namespace {

/// Linear work for 4, 1 and 0 ns; attention of a thousand units of load takes 1, 2 and 1 ns.
std::vector<RankWork> three_ranks() {
  return {{.tokens = 4, .layers_ps_per_token = 1000, .attention_ps_per_kload = 1000},
          {.tokens = 1,
           .layers_ps_per_token = 400,
           .ends_ps_per_token = 600,
           .attention_ps_per_kload = 2000},
          {.attention_ps_per_kload = 1000}};
}

TEST(FinishTime, of_ranks_that_differ_by_hand) {
  std::vector<RankWork> ranks = three_ranks();
  EXPECT_EQ(least_ps(ranks, BalanceTarget::kWhole, 0), 4000);
  EXPECT_EQ(least_ps(ranks, BalanceTarget::kWhole, 5500), 4000);  // 3 / 2 and 4 thousands fit below
  EXPECT_EQ(least_ps(ranks, BalanceTarget::kWhole, 8000), 5000);  // and 2.5 thousands more a ns
  EXPECT_EQ(load_within(ranks, BalanceTarget::kWhole, 5000), 8000);
  EXPECT_EQ(load_within(ranks, BalanceTarget::kWhole, 500), 500);
  EXPECT_EQ(least_ps(ranks, BalanceTarget::kAttention, 5000), 6000);
  EXPECT_EQ(load_within(ranks, BalanceTarget::kAttention, 6000), 5000);
  EXPECT_EQ(load_within(ranks, BalanceTarget::kAttention, 3000), 0);
  ranks[2].serves = false;
  EXPECT_EQ(least_ps(ranks, BalanceTarget::kWhole, 3000), 5000);
  // Other linear work makes the first as late as it would be with 6 tokens.
  ranks[0].other_ps = 2000;
  EXPECT_EQ(linear_ps(ranks[0]), 6000);
  EXPECT_EQ(least_ps(ranks, BalanceTarget::kWhole, 0), 6000);
}

TEST(FinishTime, of_equal_ranks_is_the_closed_form) {
  constexpr int kRanks = 4;
  for (int working = 0; working <= kRanks; ++working) {
    std::vector<RankWork> ranks(kRanks, {.attention_ps_per_kload = 1'000'000});
    for (int rank = 0; rank < working; ++rank) {
      ranks[rank].tokens = 100;
      ranks[rank].layers_ps_per_token = 30'000;
    }
    const int64_t linear = working > 0 ? 3'000'000 : 0;
    for (const int64_t load : {1'000, 5'000, 20'000}) {
      const int64_t attention = load * 1'000;
      EXPECT_EQ(least_ps(ranks, BalanceTarget::kWhole, load),
                std::max(linear, (working * linear + attention) / kRanks));
      EXPECT_EQ(least_ps(ranks, BalanceTarget::kAttention, load), linear + attention / kRanks);
    }
  }
}

TEST(FinishTime, what_fits_within_the_least_time_is_the_load) {
  Random random(11, 0);
  for (int i = 0; i < 200; ++i) {
    std::vector<RankWork> ranks(1 + random.below(6));
    for (RankWork& work : ranks) {
      work.tokens = static_cast<int64_t>(random.below(3)) * 1000;
      work.layers_ps_per_token = static_cast<int64_t>(random.below(900));
      work.attention_ps_per_kload = 500 + static_cast<int64_t>(random.below(900));
    }
    const int64_t load = static_cast<int64_t>(random.below(4'000'000));
    for (const BalanceTarget balance_target : {BalanceTarget::kWhole, BalanceTarget::kAttention}) {
      const int64_t ps = least_ps(ranks, balance_target, load);
      EXPECT_GE(load_within(ranks, balance_target, ps + 1),
                load);  // linear work alone may take longer
      if (balance_target == BalanceTarget::kAttention) {
        EXPECT_LE(load_within(ranks, balance_target, ps - 1), load);
      }
    }
  }
}

}  // namespace
}  // namespace distca
