#include "distca/comm/health/verdict.h"

#include <gtest/gtest.h>

namespace distca {
namespace {

RankNews at(int64_t step, const std::string& operation, int64_t sequence,
            RankState state = RankState::kLive) {
  return {.state = state, .last = {step, operation, sequence}};
}

FailedWait some_wait() {
  return {.rank = 0, .at = {7, "forward layer 2 leave", 40}, .waited_s = 10, .peers = {1}};
}

TEST(Verdict, silent_rank_is_named_with_what_it_last_did) {
  std::vector<RankNews> news = {at(7, "forward layer 2 leave", 40),
                                at(7, "forward layer 2 attend", 39, RankState::kSilent)};
  news[1].silent_s = 12.34;
  EXPECT_EQ(verdict(some_wait(), news),
            "rank 1 is silent since 12.3 s (last seen: step 7, forward layer 2 attend); rank 0 "
            "waited 10.0 s for it in step 7, forward layer 2 leave");
}

TEST(Verdict, death_outweighs_silence_even_of_a_rank_nobody_waits_for) {
  std::vector<RankNews> news = {at(7, "x", 40), at(7, "y", 39, RankState::kSilent),
                                at(6, "z", 30, RankState::kDead)};
  news[2].death = "was killed by signal 9 (SIGKILL)";
  EXPECT_EQ(verdict(some_wait(), news),
            "rank 2 was killed by signal 9 (SIGKILL) (last seen: step 6, z); rank 0 waited 10.0 s "
            "for rank 1 in step 7, forward layer 2 leave");
}

TEST(Verdict, among_live_ranks_the_one_furthest_behind_is_named_not_the_awaited_one) {
  FailedWait wait = some_wait();
  wait.end = WaitEnd::kConnectionLost;
  EXPECT_EQ(verdict(wait, {at(7, "a", 40), at(7, "b", 40), at(7, "c", 12)}),
            "rank 2 is alive but behind (at step 7, c); rank 0 lost its connection to rank 1 in "
            "step 7, forward layer 2 leave");
}

TEST(Verdict, among_equals_the_awaited_rank_is_named) {
  FailedWait wait = some_wait();
  wait.peers = {2};
  EXPECT_TRUE(verdict(wait, {at(7, "a", 40), at(7, "b", 40), at(7, "c", 40)})
                  .starts_with("rank 2 is alive but behind"));
}

TEST(Verdict, within_a_sum_over_some_ranks_no_other_rank_is_behind) {
  // Rank 2 hangs in the sum; server 3 waits for all in the next exchange, or is about to post it.
  std::vector<RankNews> news = {at(7, "gradient sum", 40), at(7, "gradient sum", 40),
                                at(7, "gradient sum", 40), at(7, "loss sum", 41)};
  for (int rank = 0; rank < 3; ++rank) news[rank].last.among_some = rank == 2 ? 3 : 9;
  FailedWait wait{.rank = 3, .at = news[3].last, .waited_s = 10, .peers = {0, 1, 2}};
  EXPECT_TRUE(verdict(wait, news).starts_with("rank 2 is alive but behind"));
  wait = {.rank = 0, .at = news[0].last, .waited_s = 10, .peers = {1}};
  EXPECT_TRUE(verdict(wait, news).starts_with("rank 2 is alive but behind"));
}

TEST(Verdict, sums_over_some_ranks_that_are_over_put_nobody_else_behind) {
  Activity worker{.step = 7}, server{.step = 7};
  for (Activity* both : {&worker, &server}) advance(*both, "backward leave", TakePart::kAllRanks);
  for (int i = 0; i < 9; ++i) advance(worker, "gradient sum", TakePart::kSomeRanks);
  EXPECT_EQ(worker.sequence, server.sequence);
  EXPECT_EQ(worker.among_some, 9);
  for (Activity* both : {&worker, &server}) advance(*both, "forward enter", TakePart::kAllRanks);
  EXPECT_EQ(worker.among_some, 0);
  // Then worker 1 hangs in the evaluation of this step, and worker 0 waits for it.
  const std::vector<RankNews> news = {{.last = worker}, {.last = worker}, {.last = server}};
  EXPECT_TRUE(verdict({.rank = 0, .at = worker, .waited_s = 10, .peers = {1}}, news)
                  .starts_with("rank 1 is alive but behind (at step 7, forward enter)"));
}

TEST(Verdict, many_culprits_are_counted_not_listed) {
  std::vector<RankNews> news(7, {.state = RankState::kAbsent});
  news[0] = at(-1, "start-up", 0);
  const FailedWait wait{.rank = 0, .at = {.operation = "start-up"}};
  EXPECT_EQ(verdict(wait, news),
            "rank 1 never came, rank 2 never came, rank 3 never came and 3 more; rank 0 was in "
            "start-up");
}

TEST(Verdict, a_reason_of_its_own_comes_first_and_accuses_nobody_who_is_alive) {
  FailedWait wait = some_wait();
  wait.peers.clear();
  wait.why = "rank 0 cannot connect through eth1: no address";
  std::vector<RankNews> news = {at(7, "a", 40), at(7, "b", 12)};
  EXPECT_EQ(verdict(wait, news),
            "rank 0 cannot connect through eth1: no address; rank 0 was in step 7, forward layer 2 "
            "leave");
  news[1].state = RankState::kFailed;
  EXPECT_EQ(verdict(wait, news),
            "rank 1 ended with an error (last seen: step 7, b); rank 0 was in step 7, forward "
            "layer 2 leave");
}

TEST(Verdict, without_any_news_it_says_what_the_rank_itself_knows) {
  EXPECT_EQ(verdict(some_wait(), {}),
            "rank 0 waited 10.0 s for rank 1 in step 7, forward layer 2 leave");
}

}  // namespace
}  // namespace distca
