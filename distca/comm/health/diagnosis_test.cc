#include "distca/comm/health/diagnosis.h"

#include <gtest/gtest.h>

namespace distca {
namespace {

RankNews at(int64_t step, const std::string& operation, std::vector<int> awaits = {},
            RankState state = RankState::kLive) {
  return {.state = state, .last = {step, operation}, .awaits = std::move(awaits)};
}

FailedWait some_wait() {
  return {.rank = 0, .at = {7, "forward layer 2 combine"}, .waited_s = 10, .peers = {1}};
}

TEST(Diagnosis, silent_rank_is_named_with_what_it_last_did) {
  std::vector<RankNews> news = {at(7, "forward layer 2 combine"),
                                at(7, "forward layer 2 core_attention", {}, RankState::kSilent)};
  news[1].silent_s = 12.34;
  EXPECT_EQ(
      diagnosis(some_wait(), news),
      "rank 1 is silent since 12.3 s (last seen: step 7, forward layer 2 core_attention); rank 0 "
      "waited 10.0 s for it in step 7, forward layer 2 combine");
}

TEST(Diagnosis, death_outweighs_silence_even_of_a_rank_nobody_waits_for) {
  std::vector<RankNews> news = {at(7, "x"), at(7, "y", {}, RankState::kSilent),
                                at(6, "z", {}, RankState::kDead)};
  news[2].death = "was killed by signal 9 (SIGKILL)";
  EXPECT_EQ(diagnosis(some_wait(), news),
            "rank 2 was killed by signal 9 (SIGKILL) (last seen: step 6, z); rank 0 waited 10.0 s "
            "for rank 1 in step 7, forward layer 2 combine");
}

TEST(Diagnosis, among_live_ranks_the_one_that_awaits_nobody_is_named_not_the_awaited_one) {
  FailedWait wait = some_wait();
  wait.end = WaitEnd::kConnectionLost;
  EXPECT_EQ(diagnosis(wait, {at(7, "a"), at(7, "b", {2}), at(7, "c")}),
            "rank 2 is alive but behind (at step 7, c); rank 0 lost its connection to rank 1 in "
            "step 7, forward layer 2 combine");
}

TEST(Diagnosis, a_rank_that_the_wait_does_not_hang_on_is_not_behind_wherever_it_is) {
  FailedWait wait = some_wait();
  wait.peers = {2};
  EXPECT_TRUE(diagnosis(wait, {at(7, "a"), at(3, "b"), at(7, "c")})
                  .starts_with("rank 2 is alive but behind (at step 7, c)"));
}

TEST(Diagnosis, within_a_sum_over_some_ranks_no_other_rank_is_behind) {
  // Rank 2 hangs in the sum; server 3 waits for all in the next exchange, or is about to post it.
  std::vector<RankNews> news = {at(7, "gradient sum", {1}), at(7, "gradient sum", {2}),
                                at(7, "gradient sum"), at(7, "loss sum", {0, 1, 2})};
  FailedWait wait{.rank = 3, .at = news[3].last, .waited_s = 10, .peers = {0, 1, 2}};
  EXPECT_TRUE(diagnosis(wait, news).starts_with("rank 2 is alive but behind"));
  wait = {.rank = 0, .at = news[0].last, .waited_s = 10, .peers = {1}};
  EXPECT_TRUE(diagnosis(wait, news).starts_with("rank 2 is alive but behind"));
  news[3].awaits.clear();
  EXPECT_TRUE(diagnosis(wait, news).starts_with("rank 2 is alive but behind"));
}

TEST(Diagnosis, of_several_that_await_nobody_the_one_at_the_earliest_step_is_named) {
  FailedWait wait = some_wait();
  wait.peers = {1, 2, 3};
  EXPECT_TRUE(diagnosis(wait, {at(7, "a"), at(7, "b"), at(6, "c"), at(6, "d")})
                  .starts_with("rank 2 is alive but behind (at step 6, c)"));
  // Not known whom it awaited, as at start-up: anybody.
  wait.peers.clear();
  EXPECT_TRUE(diagnosis(wait, {at(7, "a"), at(7, "b"), at(7, "c", {1}), at(6, "d")})
                  .starts_with("rank 3 is alive but behind (at step 6, d); rank 0 was in"));
}

TEST(Diagnosis, who_has_ended_and_is_awaited_is_named_and_who_is_not_awaited_is_not) {
  std::vector<RankNews> news = {at(7, "a"), at(7, "b", {2}), at(7, "c"),
                                at(7, "d", {}, RankState::kFinished)};
  EXPECT_TRUE(diagnosis(some_wait(), news).starts_with("rank 2 is alive but behind"));
  news[1].awaits = {2, 3};
  EXPECT_TRUE(diagnosis(some_wait(), news).starts_with("rank 3 has already ended (last seen: "));
}

TEST(Diagnosis, ranks_that_await_each_other_are_named_with_whom_they_await) {
  EXPECT_EQ(diagnosis(some_wait(), {at(7, "a"), at(7, "b", {2}), at(6, "c", {1})}),
            "rank 1 awaits rank 2 (at step 7, b), rank 2 awaits rank 1 (at step 6, c); rank 0 "
            "waited 10.0 s for rank 1 in step 7, forward layer 2 combine");
  EXPECT_EQ(diagnosis(some_wait(), {at(7, "a"), at(7, "b", {0})}),
            "rank 1 awaits rank 0 (at step 7, b), rank 0 awaits rank 1 (at step 7, a); rank 0 "
            "waited 10.0 s for rank 1 in step 7, forward layer 2 combine");
}

TEST(Diagnosis, many_blamed_ranks_are_counted_not_listed) {
  std::vector<RankNews> news(7, {.state = RankState::kAbsent});
  news[0] = at(-1, "start-up");
  const FailedWait wait{.rank = 0, .at = {.operation = "start-up"}};
  EXPECT_EQ(diagnosis(wait, news),
            "rank 1 never came, rank 2 never came, rank 3 never came and 3 more; rank 0 was in "
            "start-up");
}

TEST(Diagnosis, a_reason_of_its_own_comes_first_and_blames_nobody_who_is_alive) {
  FailedWait wait = some_wait();
  wait.peers.clear();
  wait.why = "rank 0 cannot connect through eth1: no address";
  std::vector<RankNews> news = {at(7, "a"), at(7, "b")};
  EXPECT_EQ(diagnosis(wait, news),
            "rank 0 cannot connect through eth1: no address; rank 0 was in step 7, forward layer 2 "
            "combine");
  news[1].state = RankState::kFailed;
  EXPECT_EQ(diagnosis(wait, news),
            "rank 1 ended with an error (last seen: step 7, b); rank 0 was in step 7, forward "
            "layer 2 combine");
}

TEST(Diagnosis, without_any_news_it_says_what_the_rank_itself_knows) {
  EXPECT_EQ(diagnosis(some_wait(), {}),
            "rank 0 waited 10.0 s for rank 1 in step 7, forward layer 2 combine");
}

}  // namespace
}  // namespace distca
