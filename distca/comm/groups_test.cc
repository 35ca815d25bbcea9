// Exchange and collectives on every backend, worker count and message size.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <map>

#include "distca/base/error.h"
#include "distca/comm/collectives.h"
#include "distca/comm/host_read.h"
#include "distca/comm/tags.h"
#include "distca/comm/test_groups.h"

namespace distca {
namespace {

class Groups : public ::testing::TestWithParam<Backend> {
 protected:
  void on_all_sizes(const std::function<void(Communicator&)>& body) {
    for (int size : {1, 2, 3, 4, 7}) run_on(GetParam(), size, kPatient, body);
  }
};

std::byte value(int from, int to, int64_t i) {
  return static_cast<std::byte>((from * 131 + to * 17 + i * 7) & 255);
}

void everybody_to_everybody(Communicator& group, int64_t bytes, uint32_t tag) {
  const int size = group.size();
  std::vector<std::vector<std::byte>> out(size), in(size);
  std::vector<Message> sends, receives;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == group.rank()) continue;
    out[peer].resize(bytes);
    in[peer].resize(bytes);
    for (int64_t i = 0; i < bytes; ++i) out[peer][i] = value(group.rank(), peer, i);
    sends.push_back({.peer = peer, .tag = tag, .data = out[peer].data(), .bytes = bytes});
    receives.push_back({.peer = peer, .tag = tag, .data = in[peer].data(), .bytes = bytes});
  }
  group.exchange(sends, receives, "test")->wait();
  for (int peer = 0; peer < size; ++peer) {
    int64_t wrong = 0;
    for (size_t i = 0; i < in[peer].size(); ++i) {
      wrong += in[peer][i] != value(peer, group.rank(), static_cast<int64_t>(i));
    }
    EXPECT_EQ(wrong, 0) << "rank " << group.rank() << " from " << peer << ", " << bytes << " bytes";
  }
}

TEST_P(Groups, messages_of_any_size_arrive_whole) {
  on_all_sizes([](Communicator& group) {
    uint32_t tag = 0;
    for (int64_t bytes : {1, 4097, 1 << 20}) everybody_to_everybody(group, bytes, tag++);
    everybody_to_everybody(group, 3, kExchangeTags - 1);
  });
}

TEST_P(Groups, silent_pairs_take_no_part_and_tags_keep_messages_apart) {
  // Only rank 0 -> last, two messages received in the opposite order of sending.
  on_all_sizes([](Communicator& group) {
    const int last = group.size() - 1;
    if (last == 0) return;
    int32_t a = group.rank() == 0 ? 11 : 0, b = group.rank() == 0 ? 22 : 0;
    auto message = [&](int peer, uint32_t tag, int32_t& number) {
      return Message{peer, tag, reinterpret_cast<std::byte*>(&number), sizeof(number)};
    };
    std::vector<Message> sends, receives;
    if (group.rank() == 0) sends = {message(last, 1, a), message(last, 2, b)};
    if (group.rank() == last) receives = {message(0, 2, b), message(0, 1, a)};
    group.exchange(sends, receives, "pair")->wait();
    if (group.rank() == last) {
      EXPECT_EQ(a, 11);
      EXPECT_EQ(b, 22);
    }
  });
}

TEST_P(Groups, several_exchanges_may_be_under_way_and_be_waited_for_in_any_order) {
  on_all_sizes([](Communicator& group) {
    if (group.size() == 1) return;
    const int next = (group.rank() + 1) % group.size();
    const int previous = (group.rank() + group.size() - 1) % group.size();
    std::vector<int64_t> out(8), in(8, -1);
    std::vector<std::unique_ptr<PendingExchange>> pending;
    for (uint32_t i = 0; i < 8; ++i) {
      out[i] = group.rank() * 100 + i;
      const Message send{next, i, reinterpret_cast<std::byte*>(&out[i]), 8};
      const Message receive{previous, i, reinterpret_cast<std::byte*>(&in[i]), 8};
      pending.push_back(group.exchange({&send, 1}, {&receive, 1}, "ring"));
    }
    for (int i : {7, 0, 3}) pending[i]->wait();
    pending.clear();  // the others wait quietly
    for (int i = 0; i < 8; ++i) EXPECT_EQ(in[i], previous * 100 + i);
  });
}

/// Tests of backends that distinguish messages by their tags: NCCL ends an exchange as a whole.
class GroupsWithTags : public Groups {};

TEST_P(GroupsWithTags, received_does_not_wait_for_a_send_that_nobody_takes_yet) {
  std::promise<void> received;
  std::atomic<bool> taken = false;
  run_on(GetParam(), 2, kPatient, [&](Communicator& group) {
    std::vector<std::byte> large(1 << 20, std::byte(group.rank() == 0 ? 5 : 0));
    std::byte small{static_cast<unsigned char>(group.rank() == 0 ? 0 : 6)};
    const int peer = 1 - group.rank();
    const Message first{peer, 1, large.data(), 1 << 20}, second{peer, 2, &small, 1};
    if (group.rank() == 0) {
      const auto pending = group.exchange({&first, 1}, {&second, 1}, "there and back");
      pending->wait_received();
      EXPECT_EQ(small, std::byte{6});
      EXPECT_FALSE(taken);
      pending->wait_received();  // nothing is left to wait for
      received.set_value();
      pending->wait();
      EXPECT_TRUE(taken);
    } else {
      group.exchange({&second, 1}, {}, "back")->wait();
      const std::chrono::duration<double> limit(kPatient.timeout_s);
      ASSERT_EQ(received.get_future().wait_for(limit), std::future_status::ready);
      taken = true;
      group.exchange({}, {&first, 1}, "there")->wait();
      EXPECT_EQ(std::count(large.begin(), large.end(), std::byte{5}), 1 << 20);
    }
  });
}

TEST_P(Groups, a_send_that_nobody_takes_is_waited_for_no_longer_than_the_timeout) {
  std::promise<void> over;
  std::string said;
  EXPECT_THROW(
      run_on(GetParam(), 2, {.timeout_s = short_timeout_s(2), .grace_s = 1},
             [&](Communicator& group) {
               std::vector<std::byte> large(1 << 20);
               std::byte small{};
               const int peer = 1 - group.rank();
               const Message first{peer, 1, large.data(), 1 << 20};
               const Message second{peer, 2, &small, 1};
               if (group.rank() == 1) {
                 group.exchange({&second, 1}, {}, "back")->wait();
                 over.get_future().wait_for(std::chrono::seconds(300));
                 return;
               }
               const auto pending = group.exchange({&first, 1}, {&second, 1}, "there and back");
               try {
                 pending->wait_received();
                 EXPECT_NE(GetParam(), Backend::kNccl) << "a part of the exchange has ended";
                 pending->wait();
               } catch (const Error& error) {
                 said = error.what();
                 over.set_value();
                 throw;
               }
             }),
      Error);
  EXPECT_THAT(said, ::testing::HasSubstr("rank 1"));
  EXPECT_THAT(said, ::testing::HasSubstr("there and back"));
}

TEST_P(Groups, collectives_give_every_rank_the_same) {
  on_all_sizes([](Communicator& group) {
    barrier(group, "barrier");
    const std::byte mine[3] = {std::byte(group.rank()), std::byte{7}, std::byte{8}};
    const std::vector<std::byte> all = all_gather_bytes(group, mine, "gather");
    ASSERT_EQ(all.size(), 3u * group.size());
    for (int rank = 0; rank < group.size(); ++rank) {
      EXPECT_EQ(all[3 * rank], std::byte(rank));
      EXPECT_EQ(all[3 * rank + 2], std::byte{8});
    }
  });
}

TEST_P(Groups, nobody_leaves_a_barrier_before_the_last_has_entered) {
  std::map<int, std::atomic<int>> entered;
  for (int size : {1, 2, 3, 4, 7}) entered[size] = 0;
  on_all_sizes([&](Communicator& group) {
    std::atomic<int>& mine = entered.at(group.size());
    for (int round = 1; round <= 3; ++round) {
      ++mine;
      barrier(group, "barrier");
      EXPECT_GE(mine, round * group.size());
      barrier(group, "barrier");  // keeps the next round's entries apart
    }
  });
}

TEST_P(Groups, a_barrier_holds_the_host_where_waits_hold_a_device) {
  on_all_sizes([](Communicator& group) {
    const HostReadLog log;
    barrier(group, "barrier");
    EXPECT_EQ(log.seconds().size(), group.size() > 1 ? 1 : 0);
  });
}

INSTANTIATE_TEST_SUITE_P(Each, Groups,
                         ::testing::Values(Backend::kThreads, Backend::kGloo, Backend::kNccl),
                         [](const auto& info) { return to_string(info.param); });
INSTANTIATE_TEST_SUITE_P(Each, GroupsWithTags, ::testing::Values(Backend::kThreads, Backend::kGloo),
                         [](const auto& info) { return to_string(info.param); });

}  // namespace
}  // namespace distca
