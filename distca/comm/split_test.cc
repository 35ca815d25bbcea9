// Groups split from a group: any ranks in any order, overlapping ones at once, with the bits that a
// sum in the order of their members has; and who is named when one of several groups stalls.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <latch>
#include <optional>
#include <random>
#include <span>
#include <thread>

#include "distca/base/error.h"
#include "distca/comm/collectives.h"
#include "distca/comm/ordered_sum.h"
#include "distca/comm/tags.h"
#include "distca/comm/test_groups.h"

namespace distca {
namespace {

using ::testing::HasSubstr;
using Ranks = std::vector<int>;

class Split : public ::testing::TestWithParam<Backend> {};

/// Returns numbers of very different size, so that another order of adding gives other bits.
std::vector<double> doubles_of(int rank, size_t count) {
  std::mt19937_64 random(1000 + rank);
  std::vector<double> numbers(count);
  for (double& number : numbers) {
    const auto bits = static_cast<int64_t>(random());
    number = std::ldexp(static_cast<double>(bits >> 20), static_cast<int>(bits & 31));
  }
  return numbers;
}

/// `ranks`: the group's, as the whole one numbers them.
void expect_sum_in_order(Communicator& group, const Ranks& ranks, size_t count) {
  ASSERT_EQ(group.size(), static_cast<int>(ranks.size()));
  std::vector<double> sum = doubles_of(ranks[0], count);
  for (size_t i = 1; i < ranks.size(); ++i) {
    const std::vector<double> theirs = doubles_of(ranks[i], count);
    for (size_t k = 0; k < count; ++k) sum[k] += theirs[k];
  }
  std::vector<double> mine = doubles_of(ranks[group.rank()], count);
  ordered_sum(group, std::span<double>(mine), "sum");
  EXPECT_EQ(mine, sum) << "rank " << group.rank() << " of " << ::testing::PrintToString(ranks);
}

/// A message to every other rank of a group, and one from each, all with the same tag.
class Swap {
 public:
  Swap(Communicator& group, int64_t salt) : group_(group), salt_(salt) {
    out_.resize(group.size());
    in_.assign(group.size(), -1);
    std::vector<Message> sends, receives;
    for (int peer = 0; peer < group.size(); ++peer) {
      if (peer == group.rank()) continue;
      out_[peer] = value(group.rank(), peer);
      sends.push_back({peer, 7, reinterpret_cast<std::byte*>(&out_[peer]), 8});
      receives.push_back({peer, 7, reinterpret_cast<std::byte*>(&in_[peer]), 8});
    }
    pending_ = group.exchange(sends, receives, "swap");
  }
  void expect() {
    pending_->wait();
    for (int peer = 0; peer < group_.size(); ++peer) {
      EXPECT_EQ(in_[peer], peer == group_.rank() ? -1 : value(peer, group_.rank()));
    }
  }

 private:
  int64_t value(int from, int to) const { return salt_ * 10000 + from * 100 + to; }

  Communicator& group_;
  int64_t salt_;
  std::vector<int64_t> out_, in_;
  std::unique_ptr<PendingExchange> pending_;
};

/// Every rank is in the groups that name it, and plays in all of them at once.
void play(Communicator& whole, const std::vector<Ranks>& groups) {
  struct Mine {
    std::unique_ptr<Communicator> group;
    Ranks ranks;
    int64_t salt = 0;
  };
  std::vector<Mine> mine;
  for (const Ranks& ranks : groups) {
    const auto place = std::ranges::find(ranks, whole.rank());
    if (place == ranks.end()) continue;
    mine.push_back({whole.split(ranks), ranks, static_cast<int64_t>(&ranks - groups.data())});
    EXPECT_EQ(mine.back().group->rank(), place - ranks.begin());
  }
  // Posted in one order, waited for in the other, with sums of the same groups in between.
  Swap of_whole(whole, 99);
  std::vector<std::unique_ptr<Swap>> swaps;
  for (const Mine& one : mine) swaps.push_back(std::make_unique<Swap>(*one.group, one.salt));
  for (const Mine& one : mine) {
    for (const size_t count : {1, 2, 5, 1001}) expect_sum_in_order(*one.group, one.ranks, count);
  }
  std::ranges::reverse(swaps);
  for (const auto& swap : swaps) swap->expect();
  of_whole.expect();
}

TEST_P(Split, in_two_in_three_and_overlapping_each_group_has_its_own_messages_and_bits) {
  const std::vector<std::vector<Ranks>> cases = {
      {{0, 1, 2}, {3, 4, 5}},
      {{0, 2, 4}, {1, 3, 5}},
      {{0, 1}, {2, 3}, {4, 5}},
      {{0, 1, 2, 3}, {2, 3, 4, 5}, {0, 1, 4, 5}},    // two of each pair are in two groups
      {{5, 3, 1}, {0, 1, 2, 3, 4, 5}, {3, 5}, {4}},  // in any order, all, one alone
      {{1, 2}, {1, 2}, {2, 1}},                      // three groups of the same ranks
  };
  for (const auto& groups : cases) {
    run_on(GetParam(), 6, kPatient, [&](Communicator& whole) { play(whole, groups); });
  }
}

TEST_P(Split, a_group_is_split_as_the_whole_is) {
  run_on(GetParam(), 5, kPatient, [](Communicator& whole) {
    if (whole.rank() == 2) return;
    const auto four = whole.split(std::array{4, 3, 1, 0});
    if (four->rank() % 2 == 0) return;
    const auto two = four->split(std::array{3, 1});  // ranks 0 and 3 of the whole
    EXPECT_EQ(two->rank(), whole.rank() == 0 ? 0 : 1);
    Swap of_four_members(*two, 1);
    expect_sum_in_order(*two, {0, 3}, 5);
    of_four_members.expect();
    barrier(*two, "barrier");
  });
}

TEST_P(Split, ranks_that_are_not_there_twice_there_or_not_the_callers_are_our_bug) {
  run_on(GetParam(), 3, kPatient, [](Communicator& whole) {
    const int next = (whole.rank() + 1) % 3;
    EXPECT_THROW(whole.split(std::array{next}), CheckFailure);
    EXPECT_THROW(whole.split(std::array{whole.rank(), 3}), CheckFailure);
    EXPECT_THROW(whole.split(std::array{whole.rank(), -1}), CheckFailure);
    EXPECT_THROW(whole.split(std::array{whole.rank(), next, next}), CheckFailure);
    const auto all = whole.split(std::array{0, 1, 2});  // none of those counted
    expect_sum_in_order(*all, {0, 1, 2}, 5);
    std::byte byte{};
    const Message beyond{.peer = next, .tag = kGroupTags, .data = &byte, .bytes = 1};
    EXPECT_THROW(all->exchange({&beyond, 1}, {}, "x"), CheckFailure);
  });
}

class Stall : public ::testing::TestWithParam<Backend> {
 protected:
  /// `waiting` ranks of them wait in vain.
  void run(int size, int waiting, const std::function<void(Communicator&)>& body) {
    said_.assign(size, "");
    over_.emplace(waiting);
    EXPECT_THROW(run_on(GetParam(), size, {.timeout_s = timeout_s_, .grace_s = 5},
                        [&](Communicator& whole) {
                          try {
                            body(whole);
                          } catch (const Error& error) {
                            said_[whole.rank()] = error.what();
                            over_->count_down();
                            throw;
                          }
                        }),
                 Error);
  }

  static void receive(Communicator& group, int peer, const char* operation) {
    std::byte byte{};
    const Message in{.peer = peer, .tag = 1, .data = &byte, .bytes = 1};
    group.exchange({}, {&in, 1}, operation)->wait();
  }

  /// Until all others have given up.
  void compute() { over_->wait(); }

  // Ranks as processes are taken for silent after three tenths of it.
  const double timeout_s_ = short_timeout_s(GetParam() == Backend::kThreads ? 1 : 2);
  std::vector<std::string> said_;  // by the ranks that waited in vain
  std::optional<std::latch> over_;
};

TEST_P(Stall, of_two_groups_that_stall_apart_each_wait_names_its_own) {
  // Ranks 1 and 3 compute too long, each for the other one of its group. Rank 3 is at an earlier
  // step, whoever gives up first.
  for (const int first : {0, 2}) {
    run(4, 2, [&](Communicator& whole) {
      const int base = whole.rank() / 2 * 2;
      whole.set_step(whole.rank() == 3 ? 1 : 5);
      whole.exchange({}, {}, base == 0 ? "sum of the first" : "sum of the second");
      const auto pair = whole.split(std::array{base, base + 1});
      if (pair->rank() == 1) return compute();
      if (base != first) std::this_thread::sleep_for(std::chrono::duration<double>(timeout_s_ / 2));
      receive(*pair, 1, "sum of a pair");
    });
    EXPECT_THAT(
        said_[first],
        HasSubstr(first == 0 ? "rank 1 is alive but behind (at step 5, sum of the first); rank 0 "
                               "waited "
                             : "rank 3 is alive but behind (at step 1, sum of the second); rank 2 "
                               "waited "));
    EXPECT_EQ(said_[0], said_[2]);
  }
}

TEST_P(Stall, across_groups_the_one_whom_all_hang_on_is_named) {
  // Rank 0 waits for 1 in one group, which waits for 2 in another, which computes. Rank 3, which
  // nobody needs, is further behind.
  run(4, 2, [&](Communicator& whole) {
    whole.set_step(whole.rank() == 3 ? 1 : 5);
    whole.exchange({}, {}, "before");
    if (whole.rank() == 3) return compute();
    std::unique_ptr<Communicator> left, right;
    if (whole.rank() < 2) left = whole.split(std::array{0, 1});
    if (whole.rank() > 0) right = whole.split(std::array{2, 1});
    if (whole.rank() == 2) return compute();
    if (whole.rank() == 1) receive(*right, 0, "hand over");
    receive(*left, 1, "sum");
  });
  EXPECT_THAT(said_[0], HasSubstr("rank 2 is alive but behind (at step 5, before); rank "));
  EXPECT_EQ(said_[0], said_[1]);
}

TEST_P(Stall, groups_that_await_each_other_in_a_circle_are_named_as_such) {
  run(3, 3, [&](Communicator& whole) {
    const int next = (whole.rank() + 1) % 3;
    // Each pair splits its group in the same place: 0 and 1, then 1 and 2, then 2 and 0.
    std::unique_ptr<Communicator> with_next;
    for (const Ranks& pair : {Ranks{0, 1}, Ranks{1, 2}, Ranks{2, 0}}) {
      if (!std::ranges::count(pair, whole.rank())) continue;
      auto group = whole.split(pair);
      if (pair[0] == whole.rank()) with_next = std::move(group);
    }
    whole.set_step(2);
    receive(*with_next, 1, fmt::format("wait for {}", next).c_str());
  });
  for (const int rank : {0, 1, 2}) {
    EXPECT_THAT(said_[0], HasSubstr(fmt::format("rank {} awaits rank {} (at step 2, wait for {})",
                                                rank, (rank + 1) % 3, (rank + 1) % 3)));
    EXPECT_EQ(said_[rank], said_[0]);
  }
}

INSTANTIATE_TEST_SUITE_P(Each, Split,
                         ::testing::Values(Backend::kThreads, Backend::kGloo, Backend::kNccl),
                         [](const auto& info) { return to_string(info.param); });
INSTANTIATE_TEST_SUITE_P(Each, Stall,
                         ::testing::Values(Backend::kThreads, Backend::kGloo, Backend::kNccl),
                         [](const auto& info) { return to_string(info.param); });

}  // namespace
}  // namespace distca
