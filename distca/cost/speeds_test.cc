#include "distca/cost/speeds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "distca/base/random.h"

namespace distca {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr int64_t kTokens = 1000;
constexpr int64_t kLoad = 1'000'000;  // with a speed of 1'000'000 ps a thousand: 1e9 ps

Speeds speeds_of(std::vector<RankSpeed> ranks) { return {.ranks = std::move(ranks)}; }

std::vector<int64_t> capacities(const Speeds& speeds, BalanceTarget balance_target, int num_workers,
                                int num_servers, bool in_place = true, int64_t tokens = kTokens,
                                int64_t load = kLoad) {
  return even_capacities(work_of_step(speeds, num_workers, num_servers, in_place, tokens),
                         balance_target, load);
}

TEST(EvenCapacities, ranks_that_are_alike_or_unknown_get_one_each) {
  for (const BalanceTarget balance_target : {BalanceTarget::kAttention, BalanceTarget::kWhole}) {
    EXPECT_THAT(capacities({}, balance_target, 1, 1), ElementsAre(1));
    EXPECT_THAT(capacities({}, balance_target, 7, 7), Each(1));
    EXPECT_THAT(capacities({}, balance_target, 2, 3), ElementsAre(1, 1, 1));
    EXPECT_THAT(capacities({}, balance_target, 2, 3, /*in_place=*/false), ElementsAre(0, 0, 1));
    EXPECT_THAT(
        capacities(speeds_of({{5'000, 300}, {5'000, 300}, {5'000, 300}}), balance_target, 3, 3),
        ElementsAre(1, 1, 1));
    // Only linear work is known: nothing to weigh it against.
    EXPECT_THAT(capacities(speeds_of({{5'000, 0}, {9'000, 0}}), balance_target, 2, 2),
                ElementsAre(1, 1));
  }
}

TEST(EvenCapacities, workers_do_not_serve_unless_they_must) {
  EXPECT_THAT(capacities({}, BalanceTarget::kAttention, 2, 2, /*in_place=*/false),
              ElementsAre(1, 1));
  EXPECT_THAT(capacities(speeds_of({{0, 100}, {0, 100}, {0, 100}, {0, 200}}), BalanceTarget::kWhole,
                         2, 4, /*in_place=*/false),
              ElementsAre(0, 0, 2, 1));
}

TEST(EvenCapacities, of_attention_alone_are_the_speeds) {
  const Speeds speeds = speeds_of({{7, 100}, {9'000'000, 200}, {0, 400}});
  EXPECT_THAT(capacities(speeds, BalanceTarget::kAttention, 2, 3), ElementsAre(4, 2, 1));
  // Unknown: the mean of the known ones, (100 + 300) / 2.
  EXPECT_THAT(capacities(speeds_of({{0, 100}, {0, 300}, {0, 0}}), BalanceTarget::kAttention, 3, 3),
              ElementsAre(10'000, 3'333, 5'000));
}

TEST(EvenCapacities, of_whole_layers_count_linear_work_by_hand) {
  // Attention of all load takes 1e9 ps on one rank. Linear work: 0.4e9, 0.2e9, none (dedicated).
  const RankSpeed slow{400'000, 1'000'000}, fast{200'000, 1'000'000}, server{0, 1'000'000};
  // T = (1 + 0.4 + 0.2 + 0) / 3 = 0.5333e9: 0.1333, 0.3333, 0.5333.
  EXPECT_THAT(capacities(speeds_of({slow, fast, server}), BalanceTarget::kWhole, 2, 3),
              ElementsAre(2, 5, 8));
  // Half as fast at everything: T = (1 + 0.8 / 2 + 0.2) / 1.5 = 1.0667: 0.1333, 0.8667.
  EXPECT_THAT(capacities(speeds_of({{800'000, 2'000'000}, fast}), BalanceTarget::kWhole, 2, 2),
              ElementsAre(769, 5'000));
  // A worker whose linear work is unknown is taken for one like the other.
  EXPECT_THAT(capacities(speeds_of({fast, {0, 1'000'000}}), BalanceTarget::kWhole, 2, 2),
              ElementsAre(1, 1));
  // The speed of linear work that is stated for a dedicated server does not count.
  EXPECT_THAT(
      capacities(speeds_of({slow, fast, {900'000, 1'000'000}}), BalanceTarget::kWhole, 2, 3),
      ElementsAre(2, 5, 8));
}

TEST(EvenCapacities, count_other_linear_work_as_that_of_tokens) {
  std::vector<RankWork> ranks(
      2, {.tokens = 10, .layers_ps_per_token = 100, .attention_ps_per_kload = 1000});
  ranks[1].tokens = 15;
  const std::vector<int64_t> of_tokens = even_capacities(ranks, BalanceTarget::kWhole, 5000);
  ranks[1].tokens = 10;
  EXPECT_NE(even_capacities(ranks, BalanceTarget::kWhole, 5000), of_tokens);
  ranks[1].other_ps = 500;
  EXPECT_EQ(even_capacities(ranks, BalanceTarget::kWhole, 5000), of_tokens);
}

TEST(EvenCapacities, of_ranks_with_other_tokens_and_layers_count_each_ones_own) {
  // Attention of all load takes 1e9 ps on one rank. Linear work: 0.2e9 of layers; 0.2e9 of twice as
  // many tokens in half as many layers, and 0.2e9 of the head; none (no nano-batch in this time).
  const RankWork stage{
      .tokens = kTokens, .layers_ps_per_token = 200'000, .attention_ps_per_kload = 1'000'000};
  const RankWork last{.tokens = 2 * kTokens,
                      .layers_ps_per_token = 100'000,
                      .ends_ps_per_token = 100'000,
                      .attention_ps_per_kload = 1'000'000};
  const RankWork idle{.layers_ps_per_token = 200'000, .attention_ps_per_kload = 1'000'000};
  // T = (1 + 0.2 + 0.4 + 0) / 3 = 0.5333e9: 0.3333, 0.1333, 0.5333.
  EXPECT_THAT(even_capacities(std::vector{stage, last, idle}, BalanceTarget::kWhole, kLoad),
              ElementsAre(5, 2, 8));
  EXPECT_THAT(even_capacities(std::vector{stage, last, idle}, BalanceTarget::kAttention, kLoad),
              ElementsAre(1, 1, 1));
  // Layers of unknown speed are taken for the others'; the head is not: it is as told.
  RankWork unknown = last;
  unknown.tokens = kTokens;
  unknown.layers_ps_per_token = 0;
  unknown.ends_ps_per_token = 200'000;
  EXPECT_THAT(even_capacities(std::vector{stage, unknown, idle}, BalanceTarget::kWhole, kLoad),
              ElementsAre(5, 2, 8));
}

TEST(EvenCapacities, a_rank_too_slow_for_its_linear_work_gets_nothing) {
  const RankSpeed usual{100'000, 1'000'000};
  // Its linear work takes 5e9 ps, the others are done after 0.1e9 + 0.5e9.
  EXPECT_THAT(
      capacities(speeds_of({usual, {5'000'000, 1'000'000}, usual}), BalanceTarget::kWhole, 3, 3),
      ElementsAre(1, 0, 1));
  EXPECT_THAT(capacities(speeds_of({usual, {5'000'000, 1'000'000}, usual}),
                         BalanceTarget::kAttention, 3, 3),
              ElementsAre(1, 1, 1));
  // Where only attention is evened everybody gets some, however little.
  EXPECT_THAT(
      capacities(speeds_of({{0, 1}, {0, 1'000'000'000'000}}), BalanceTarget::kAttention, 2, 2),
      ElementsAre(10'000, 1));
}

TEST(EvenCapacities, without_load_or_tokens_are_the_speeds_of_attention) {
  const Speeds speeds = speeds_of({{400'000, 100}, {200'000, 200}});
  EXPECT_THAT(capacities(speeds, BalanceTarget::kWhole, 2, 2, true, kTokens, 0), ElementsAre(2, 1));
  EXPECT_THAT(capacities(speeds, BalanceTarget::kWhole, 2, 2, true, 0, kLoad), ElementsAre(2, 1));
  EXPECT_THAT(capacities(speeds, BalanceTarget::kWhole, 2, 2, true, 0, 0), ElementsAre(2, 1));
}

TEST(EvenCapacities, the_largest_numbers_do_not_overflow) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (const BalanceTarget balance_target : {BalanceTarget::kAttention, BalanceTarget::kWhole}) {
    EXPECT_THAT(capacities(speeds_of({{kMost, kMost}, {kMost, kMost}}), balance_target, 2, 2, true,
                           kMost, kMost),
                ElementsAre(1, 1));
  }
}

/// Largest over servers of how far the finish of those with load, and the start of those without,
/// is from one time T, over T.
double unevenness(const std::vector<RankWork>& ranks, const std::vector<int64_t>& capacity,
                  int64_t load) {
  const auto sum =
      static_cast<double>(std::accumulate(capacity.begin(), capacity.end(), int64_t{0}));
  std::vector<double> start, finish;
  double latest = 0;
  for (size_t server = 0; server < capacity.size(); ++server) {
    const RankWork& rank = ranks[server];
    start.push_back(
        static_cast<double>(rank.tokens * (rank.layers_ps_per_token + rank.ends_ps_per_token)));
    const double share = static_cast<double>(capacity[server]) / sum;
    finish.push_back(start.back() + share * static_cast<double>(load) / 1000 *
                                        static_cast<double>(rank.attention_ps_per_kload));
    if (capacity[server] > 0) latest = std::max(latest, finish.back());
  }
  double worst = 0;
  for (size_t server = 0; server < capacity.size(); ++server) {
    worst =
        std::max(worst, capacity[server] > 0 ? latest - finish[server] : latest - start[server]);
  }
  return worst / latest;
}

TEST(EvenCapacities, make_random_machines_finish_together) {
  Random random(1);
  const auto below = [&](int64_t bound) { return static_cast<int64_t>(random.below(bound)); };
  int with_idle_servers = 0;
  for (int round = 0; round < 4000; ++round) {
    const bool alike = round % 2 == 0;  // in tokens, and no ends: a step without stages
    const int64_t same = below(10'000);
    const int64_t workers = 1 + below(12);
    std::vector<RankWork> ranks(workers + below(13 - workers));
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const int64_t slowness = 1 + below(8);
      RankWork& work = ranks[rank];
      work.layers_ps_per_token = slowness * (1 + below(400'000));
      work.attention_ps_per_kload = slowness * (1'000'000 + below(1'000'000));
      if (rank < static_cast<size_t>(workers)) work.tokens = alike ? same : below(10'000);
      if (!alike && below(3) == 0) work.ends_ps_per_token = slowness * below(800'000);
    }
    const int64_t load = 100'000 + below(int64_t{1} << 24);
    const std::vector<int64_t> capacity = even_capacities(ranks, BalanceTarget::kWhole, load);
    ASSERT_EQ(capacity, even_capacities(ranks, BalanceTarget::kWhole, load));
    with_idle_servers +=
        static_cast<int>(std::count(capacity.begin(), capacity.end(), int64_t{0}) > 0);
    // Half a unit of 10,000 of the largest share, in as many servers.
    ASSERT_LT(unevenness(ranks, capacity, load), 0.002) << "round " << round;
  }
  EXPECT_GT(with_idle_servers, 100);  // the case is among them
}

TEST(KnownSpeeds, have_no_gaps) {
  const Speeds stated = speeds_of({{1, 2}, {1, 2}, {1, 2}});
  Speeds measured = speeds_of({{100, 10}, {300, 0}, {0, 30}});
  measured.bytes_per_us = 5;
  measured.from_step = 7;
  Speeds expected = speeds_of({{100, 10}, {300, 20}, {200, 30}});
  expected.bytes_per_us = 5;
  expected.from_step = 7;
  EXPECT_EQ(fill_in_speeds(measured, stated), expected);
  // Measured and stated ones are no match for each other.
  measured.ranks = {{100, 0}, {300, 0}, {0, 0}};
  EXPECT_EQ(fill_in_speeds(measured, stated).ranks, stated.ranks);
  EXPECT_EQ(fill_in_speeds({}, stated).ranks, stated.ranks);
}

ModelShape small_llama() {
  return {.num_layers = 2,
          .hidden_size = 100,
          .intermediate_size = 300,
          .attention = {.num_heads = 6, .num_kv_heads = 3, .head_dim_qk = 16, .head_dim_v = 8}};
}

TEST(StatedSpeeds, of_a_small_llama_counted_by_hand) {
  const Speeds speeds = assumed_speeds(small_llama(), 3);
  ASSERT_EQ(speeds.ranks.size(), 3u);
  // Two layers; two FLOPs a multiply-add; backward twice forward.
  const int64_t token_flops = 2 * 2 * 3 * (100 * (6 * 16 + 3 * (16 + 8) + 6 * 8) + 3 * 100 * 300);
  // Backward five products where forward has two.
  const int64_t pair_flops = 2 * (2 + 5) * 6 * (16 + 8);
  for (const RankSpeed& rank : speeds.ranks) {
    EXPECT_EQ(rank.linear_ps_per_token, token_flops / kAssumedTflops);
    EXPECT_EQ(rank.attention_ps_per_kload, 1000 * pair_flops / kAssumedTflops);
  }
  EXPECT_EQ(speeds.bytes_per_us, 0);
  EXPECT_EQ(assumed_speeds(small_llama(), 1, nullptr, 1000).ranks[0].linear_ps_per_token,
            (token_flops + 2 * 2 * 1000) / kAssumedTflops);
}

TEST(StatedSpeeds, with_a_profile_take_its_times_and_its_rate) {
  const AttentionProfile profile = h200_profile();
  const Speeds speeds = assumed_speeds(small_llama(), 1, &profile);
  // A thousand ns of load, in each of two layers.
  EXPECT_EQ(speeds.ranks.front().attention_ps_per_kload, 2 * 1000 * 1000);
  // The profile's rate is its constants': 310 TFLOPS forward, 80 % of it backward.
  const auto by_flops =
      static_cast<double>(assumed_speeds(small_llama(), 1).ranks[0].linear_ps_per_token);
  const double rate = 3.5 / (1 + 2.5 / 0.8) * 310;
  EXPECT_NEAR(static_cast<double>(speeds.ranks.front().linear_ps_per_token),
              by_flops * static_cast<double>(kAssumedTflops) / rate, 0.02 * by_flops);
}

}  // namespace
}  // namespace distca
