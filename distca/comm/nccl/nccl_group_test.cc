// Order, sizes and grouping of exchanges through NCCL or its stand-in (nccl_testing.h): what goes
// wrong is in nccl_faults_test.cc.

#include "distca/comm/nccl/nccl_group.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <vector>

#include "distca/base/error.h"
#include "distca/comm/launch/local_store.h"
#include "distca/comm/nccl/nccl_testing.h"
#include "distca/comm/test_groups.h"

namespace distca {
namespace {

constexpr int kRounds = 100;

class NcclGroup : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = nccl_cannot_run(); !why.empty()) GTEST_SKIP() << why;
  }
};

/// Bytes that no other message of a test has.
std::vector<std::byte> content(int from, int to, uint32_t salt, int64_t bytes) {
  std::mt19937 random(static_cast<uint32_t>(from * 1000 + to) * 7919 + salt);
  std::vector<std::byte> all(bytes);
  for (std::byte& one : all) one = static_cast<std::byte>(random() & 255);
  return all;
}

/// Several messages of random sizes to every other rank and from it, listed in an order of each
/// rank's own.
class Storm {
 public:
  Storm(Communicator& group, NcclTestRank& memory, uint32_t round, int messages)
      : group_(group), memory_(memory), round_(round) {
    std::mt19937 sizes(round), order(round * 31 + static_cast<uint32_t>(group.rank()));
    const int size = group.size();
    std::vector<Message> sends, receives;
    in_.resize(static_cast<size_t>(size) * size * messages);
    for (int from = 0; from < size; ++from) {
      for (int to = 0; to < size; ++to) {
        for (int tag = 0; tag < messages; ++tag) {
          const auto bytes = static_cast<int64_t>(1 + sizes() % (tag == 0 ? 20000 : 50));
          const size_t at = place(from, to, tag);
          const auto number = static_cast<uint32_t>(tag);
          if (from == to) continue;
          if (from == group.rank()) {
            std::byte* const out = memory.take(bytes);
            memory.fill(out, content(from, to, salt(tag), bytes));
            sends.push_back({to, number, out, bytes});
          }
          if (to == group.rank()) {
            in_[at] = {from, number, memory.take(bytes), bytes};
            receives.push_back(in_[at]);
          }
        }
      }
    }
    std::ranges::shuffle(sends, order);
    std::ranges::shuffle(receives, order);
    pending_ = group.exchange(sends, receives, "storm");
  }

  void expect() {
    pending_->wait();
    for (int from = 0; from < group_.size(); ++from) {
      for (int tag = 0; from != group_.rank() && tag < messages(); ++tag) {
        const Message& got = in_[place(from, group_.rank(), tag)];
        EXPECT_EQ(memory_.read(got.data, got.bytes),
                  content(from, group_.rank(), salt(tag), got.bytes))
            << "rank " << group_.rank() << " from " << from << ", round " << round_;
      }
    }
  }

 private:
  int messages() const { return static_cast<int>(in_.size()) / group_.size() / group_.size(); }
  uint32_t salt(int tag) const { return round_ * 100 + static_cast<uint32_t>(tag); }
  size_t place(int from, int to, int tag) const {
    return (static_cast<size_t>(from) * group_.size() + to) * messages() + tag;
  }

  Communicator& group_;
  NcclTestRank& memory_;
  const uint32_t round_;
  std::vector<Message> in_;
  std::unique_ptr<PendingExchange> pending_;
};

TEST_F(NcclGroup, messages_of_any_size_and_order_arrive_whole_in_a_hundred_rounds) {
  run_nccl_ranks(nccl_ranks(3), kPatient, [](Communicator& group, NcclTestRank& rank) {
    for (uint32_t round = 0; round < kRounds; ++round) Storm(group, rank, round, 3).expect();
  });
}

TEST_F(NcclGroup, late_streams_change_nothing_and_exchanges_may_be_waited_for_in_any_order) {
  constexpr int64_t kMostUs = 1500;
  std::optional<StandinFaults> late;
  if (!nccl_is_real()) late.emplace(fmt::format("delay,us={}", kMostUs));
  run_nccl_ranks(nccl_ranks(3), kPatient, [](Communicator& whole, NcclTestRank& rank) {
    const int last = whole.size() - 1;  // with two ranks, both groups have both
    const bool is_left = whole.rank()<2, is_right = whole.rank()> last - 2;
    const auto left = is_left ? whole.split(std::array{1, 0}) : nullptr;
    const auto right = is_right ? whole.split(std::array{last, last - 1}) : nullptr;
    std::mt19937 random(static_cast<uint32_t>(whole.rank()));
    for (uint32_t round = 0; round < kRounds; ++round) {
      std::vector<std::unique_ptr<Storm>> storms;
      const auto begin = [&](Communicator& group, uint32_t number, int messages) {
        rank.delay(1 + static_cast<int64_t>(random() % kMostUs));
        storms.push_back(std::make_unique<Storm>(group, rank, 3 * round + number, messages));
      };
      if (is_left) begin(*left, 0, 1);
      begin(whole, 1, 2);
      if (is_right) begin(*right, 2, 1);
      std::ranges::shuffle(storms, random);
      for (const auto& storm : storms) {
        rank.delay(1 + static_cast<int64_t>(random() % kMostUs));
        storm->expect();
      }
    }
  });
}

TEST_F(NcclGroup, an_exchange_is_one_group_with_its_receives_and_sends) {
  if (nccl_is_real()) GTEST_SKIP() << kNeedsStandin;
  struct Seen {
    int sends, receives;
    bool operator==(const Seen&) const = default;
  };
  std::mutex mutex;
  std::map<int, std::vector<Seen>> seen;  // the groups of each rank
  {
    const StandinGroups watching([&](int rank, int sends, int receives) {
      std::lock_guard lock(mutex);
      seen[rank].push_back({sends, receives});
    });
    run_nccl_ranks(3, kPatient, [](Communicator& group, NcclTestRank& rank) {
      for (uint32_t round = 0; round < kRounds; ++round) {
        Storm(group, rank, round, 2).expect();
        group.exchange({}, {}, "nothing to say")->wait();
      }
    });
  }
  for (const int rank : {0, 1, 2}) {
    std::vector<Seen> expected(kRounds + 1, Seen{4, 4});
    expected.front() = {2, 2};  // connects all pairs
    EXPECT_EQ(seen[rank], expected) << "rank " << rank;
  }
}

constexpr int64_t kModulus = 1'000'003;

struct Counted {
  int64_t results[2] = {};  // [rank] the number that it computed last
  int behind = 0;           // ranks whose device still had work when all had been issued
};

/// Each round sends what the device computes behind the round before, from memory it overwrites.
/// `change` is made to the devices of both ranks.
Counted count_on_devices(const std::function<void(NcclDevice&)>& change) {
  Counted counted;
  std::atomic<int> behind = 0;
  run_with_store(2, [&](uint16_t port, int number) {
    NcclTestRank rank(number, /*late=*/true);
    change(rank.device);
    const auto group = rank.join(port, 2, kPatient);
    const Message send{1 - number, 0, rank.take(8), 8}, receive{1 - number, 0, rank.take(8), 8};
    const at::Tensor out = rank.number(send.data), in = rank.number(receive.data);
    out.fill_(number + 1);
    in.fill_(0);
    for (int round = 0; round < kRounds; ++round) {
      const auto pending = group->exchange({&send, 1}, {&receive, 1}, "swap");
      pending->wait_received();
      rank.give([&] { in.mul_(3).add_(out); });
      pending->wait();
      rank.give([&] { out.copy_(in).mul_(5).add_(number).remainder_(kModulus); });
    }
    behind += rank.device.has_passed(rank.device.mark()) ? 0 : 1;
    rank.wait();
    std::memcpy(&counted.results[number], rank.read(send.data, 8).data(), 8);
  });
  counted.behind = behind;
  return counted;
}

TEST_F(NcclGroup, streams_wait_for_each_other_where_the_host_waits_for_nothing) {
  int64_t out[2] = {1, 2};
  for (int round = 0; round < kRounds; ++round) {
    const int64_t in[2] = {3 * out[1] + out[0], 3 * out[0] + out[1]};
    out[0] = 5 * in[0] % kModulus;
    out[1] = (5 * in[1] + 1) % kModulus;
  }
  const Counted right = count_on_devices([](NcclDevice&) {});
  EXPECT_THAT(right.results, ::testing::ElementsAre(out[0], out[1]));
  EXPECT_GT(right.behind, 0) << "the host waited for the device";

  // A wait that is missing shows.
  const Counted early = count_on_devices(
      [](NcclDevice& device) { device.communicate_behind = [](const DeviceMark&) {}; });
  EXPECT_THAT(early.results, ::testing::Not(::testing::ElementsAre(out[0], out[1])));
  if (nccl_is_real()) return;  // whose messages may be there in time
  const StandinFaults late("delay,us=5000");
  const Counted hasty = count_on_devices(
      [](NcclDevice& device) { device.follow = [](const DeviceMark&, double) { return true; }; });
  EXPECT_THAT(hasty.results, ::testing::Not(::testing::ElementsAre(out[0], out[1])));
}

TEST_F(NcclGroup, what_is_read_from_the_device_after_a_failure_is_not_taken_for_a_result) {
  if (nccl_is_real()) GTEST_SKIP() << kNeedsStandin;
  const StandinFaults faults("hang,rank=0,group=2");
  const double timeout_s = short_timeout_s(1);
  std::atomic<int> num_failed = 0;
  run_with_store(2, [&](uint16_t port, int number) {
    NcclTestRank rank(number, /*late=*/true);
    const auto group = rank.join(port, 2, {.timeout_s = timeout_s, .grace_s = 1});
    const Message send{1 - number, 0, rank.take(8), 8}, receive{1 - number, 0, rank.take(8), 8};
    for (const char* operation : {"sum of norms", "sum of losses"})
      group->exchange({&send, 1}, {&receive, 1}, operation)->wait();
    rank.wait();  // comes back because the group is ended
    try {
      group->throw_if_failed();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("rank 1"));
      EXPECT_THAT(error.what(), ::testing::HasSubstr("sum of losses"));
      ++num_failed;
    }
  });
  EXPECT_EQ(num_failed, 2);
}

TEST_F(NcclGroup, ranks_meet_in_a_store_that_somebody_else_made) {
  if (nccl_is_real()) GTEST_SKIP() << "its messages lie in host memory";
  std::atomic<int> kept = 0;
  run_with_store(2, [&](uint16_t port, int rank) {
    c10d::TCPStoreOptions meeting;
    meeting.port = port;
    meeting.waitWorkers = false;
    const auto store = c10::make_intrusive<c10d::TCPStore>(loopback_address(), meeting);
    for (const char* prefix : {"first", "second"}) {
      const auto own = c10::make_intrusive<c10d::PrefixStore>(prefix, store);
      const auto group = make_nccl_group(*own, rank, 2, kPatient, nccl_standin(),
                                         host_nccl_device(nccl_standin()));
      EXPECT_EQ(group->rank(), rank);
      EXPECT_TRUE(group->ends_in_order());
      uint64_t out = 40 + rank, in = 0;
      const Message send{1 - rank, 0, reinterpret_cast<std::byte*>(&out), sizeof(out)};
      const Message receive{1 - rank, 0, reinterpret_cast<std::byte*>(&in), sizeof(in)};
      group->exchange({&send, 1}, {&receive, 1}, "numbers")->wait();
      EXPECT_EQ(in, 40u + 1 - rank);
    }
    kept += static_cast<int>(store->add("mine " + std::to_string(rank), 1));
  });
  EXPECT_EQ(kept, 2) << "the store is of no use any more";
}

TEST_F(NcclGroup, two_ranks_on_one_device_are_refused_by_name) {
  if (nccl_is_real()) GTEST_SKIP() << "would leave a thread behind that waits within NCCL";
  try {
    run_with_store(2, [](uint16_t port, int rank) {
      NcclDevice device = host_nccl_device(nccl_standin());
      device.identity = "00ff";
      make_nccl_group(at_port(port, rank, 2),
                      {.timeout_s = 1, .grace_s = 1, .startup_timeout_s = 5}, nccl_standin(),
                      device);
    });
    FAIL() << "they share a device";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                ::testing::AnyOf(
                    ::testing::HasSubstr("rank 0 and rank 1 have the same CUDA device: NCCL takes"),
                    ::testing::HasSubstr("rank 1 and rank 0 have the same CUDA device: NCCL takes"),
                    // The rank that came first says this if it learns of the other's end before it
                    // fails.
                    ::testing::HasSubstr("ended with an error (last seen: start-up)")));
  }
}

}  // namespace
}  // namespace distca
