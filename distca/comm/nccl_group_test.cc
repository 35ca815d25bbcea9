// Order, sizes and grouping of exchanges through NCCL, over its stand-in: what goes wrong is in
// nccl_faults_test.cc.

#include "distca/comm/nccl_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "distca/base/error.h"
#include "distca/comm/nccl_testing.h"
#include "distca/comm/test_groups.h"

namespace distca {
namespace {

constexpr CommOptions kPatient{.timeout_s = 30, .grace_s = 1};
constexpr int kRounds = 100;

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
  Storm(Communicator& group, uint32_t round, int messages) : group_(group), round_(round) {
    std::mt19937 sizes(round), order(round * 31 + static_cast<uint32_t>(group.rank()));
    const int size = group.size();
    std::vector<Message> sends, receives;
    in_.resize(static_cast<size_t>(size) * size * messages);
    out_.resize(in_.size());
    for (int from = 0; from < size; ++from) {
      for (int to = 0; to < size; ++to) {
        for (int tag = 0; tag < messages; ++tag) {
          const auto bytes = static_cast<int64_t>(1 + sizes() % (tag == 0 ? 20000 : 50));
          const size_t at = place(from, to, tag);
          const auto number = static_cast<uint32_t>(tag);
          if (from == to) continue;
          if (from == group.rank()) {
            out_[at] = content(from, to, salt(tag), bytes);
            sends.push_back({to, number, out_[at].data(), bytes});
          }
          if (to == group.rank()) {
            in_[at].resize(bytes);
            receives.push_back({from, number, in_[at].data(), bytes});
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
        const std::vector<std::byte>& got = in_[place(from, group_.rank(), tag)];
        EXPECT_EQ(got, content(from, group_.rank(), salt(tag), static_cast<int64_t>(got.size())))
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
  const uint32_t round_;
  std::vector<std::vector<std::byte>> in_, out_;
  std::unique_ptr<PendingExchange> pending_;
};

TEST(NcclGroup, messages_of_any_size_and_order_arrive_whole_in_a_hundred_rounds) {
  run_on(Backend::kNccl, 3, kPatient, [](Communicator& group) {
    for (uint32_t round = 0; round < kRounds; ++round) Storm(group, round, 3).expect();
  });
}

TEST(NcclGroup, late_streams_change_nothing_and_exchanges_may_be_waited_for_in_any_order) {
  const StandinFaults late("delay,us=1500");
  run_on(Backend::kNccl, 3, kPatient, [](Communicator& whole) {
    const bool is_left = whole.rank() != 2, is_right = whole.rank() != 0;
    const auto left = is_left ? whole.split(std::array{1, 0}) : nullptr;
    const auto right = is_right ? whole.split(std::array{2, 1}) : nullptr;
    std::mt19937 random(static_cast<uint32_t>(whole.rank()));
    for (uint32_t round = 0; round < kRounds; ++round) {
      std::vector<std::unique_ptr<Storm>> storms;
      if (is_left) storms.push_back(std::make_unique<Storm>(*left, 3 * round, 1));
      storms.push_back(std::make_unique<Storm>(whole, 3 * round + 1, 2));
      if (is_right) storms.push_back(std::make_unique<Storm>(*right, 3 * round + 2, 1));
      std::ranges::shuffle(storms, random);
      for (const auto& storm : storms) storm->expect();
    }
  });
}

TEST(NcclGroup, an_exchange_is_one_group_with_its_receives_and_sends) {
  struct Seen {
    int sends, receives;
    bool operator==(const Seen&) const = default;
  };
  std::mutex mutex;
  std::map<int, std::vector<Seen>> seen;  // of each rank
  {
    const StandinGroups watching([&](int rank, int sends, int receives) {
      std::lock_guard lock(mutex);
      seen[rank].push_back({sends, receives});
    });
    run_on(Backend::kNccl, 3, kPatient, [](Communicator& group) {
      for (uint32_t round = 0; round < kRounds; ++round) {
        Storm(group, round, 2).expect();
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

/// A device whose current stream does later what it is given, as a GPU.
class LateDevice {
 public:
  explicit LateDevice(const NcclLibrary& nccl) : host_(*nccl.host), device(host_nccl_device(nccl)) {
    host_.create(&current_);
    device.mark = [this] { return mark(current_); };
    device.communicate_behind = [this](const DeviceMark& mark) {
      host_.follow(device.stream, mark.get());
    };
    device.follow = [this](const DeviceMark& mark, double) {
      host_.follow(current_, mark.get());
      return true;
    };
  }
  ~LateDevice() { host_.destroy(current_); }
  LateDevice(const LateDevice&) = delete;
  LateDevice& operator=(const LateDevice&) = delete;

  void give(std::function<void()> work) {
    host_.call(
        current_,
        [](void* given) {
          const std::unique_ptr<std::function<void()>> one(
              static_cast<std::function<void()>*>(given));
          std::this_thread::sleep_for(std::chrono::microseconds(300));
          (*one)();
        },
        new std::function<void()>(std::move(work)));
  }
  void wait() {
    const DeviceMark end = mark(current_);
    while (!device.has_passed(end)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  DeviceMark mark(void* stream) const {
    void* made = nullptr;
    host_.mark(stream, &made);
    return {made, [host = host_](void* one) { host.free_mark(one); }};
  }

  const HostStreams host_;
  void* current_ = nullptr;

 public:
  NcclDevice device;
};

struct Counted {
  uint64_t results[2] = {};  // of each rank
  int steps_when_issued = 0;
};

/// Each round sends what the device computes behind the round before, from memory it overwrites.
/// `change` is made to the devices of both ranks.
Counted count_on_devices(const std::function<void(NcclDevice&)>& change) {
  Counted counted;
  std::atomic<int> steps = 0;
  std::atomic<int> steps_when_issued = 0;
  run_with_store(2, [&](uint16_t port, int rank) {
    LateDevice late(nccl_standin());
    change(late.device);
    const auto group =
        make_nccl_group(at_port(port, rank, 2), kPatient, nccl_standin(), late.device);
    uint64_t out = static_cast<uint64_t>(rank) + 1, in = 0;
    for (int round = 0; round < kRounds; ++round) {
      const Message send{1 - rank, 0, reinterpret_cast<std::byte*>(&out), sizeof(out)};
      const Message receive{1 - rank, 0, reinterpret_cast<std::byte*>(&in), sizeof(in)};
      const auto pending = group->exchange({&send, 1}, {&receive, 1}, "swap");
      pending->wait_received();
      late.give([&] { in = 3 * in + out; });
      pending->wait();
      late.give([&] {
        out = 5 * in + static_cast<uint64_t>(rank);
        ++steps;
      });
    }
    steps_when_issued += steps;
    late.wait();
    counted.results[rank] = out;
  });
  counted.steps_when_issued = steps_when_issued;
  return counted;
}

TEST(NcclGroup, streams_wait_for_each_other_where_the_host_waits_for_nothing) {
  uint64_t out[2] = {1, 2};
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t in[2] = {3 * out[1] + out[0], 3 * out[0] + out[1]};
    out[0] = 5 * in[0];
    out[1] = 5 * in[1] + 1;
  }
  const Counted right = count_on_devices([](NcclDevice&) {});
  EXPECT_THAT(right.results, testing::ElementsAre(out[0], out[1]));
  EXPECT_LT(right.steps_when_issued, 2 * kRounds) << "the host waited for the device";

  // The stand-in shows what a missing wait does.
  const Counted early = count_on_devices(
      [](NcclDevice& device) { device.communicate_behind = [](const DeviceMark&) {}; });
  EXPECT_THAT(early.results, testing::Not(testing::ElementsAre(out[0], out[1])));
  const Counted hasty = count_on_devices(
      [](NcclDevice& device) { device.follow = [](const DeviceMark&, double) { return true; }; });
  EXPECT_THAT(hasty.results, testing::Not(testing::ElementsAre(out[0], out[1])));
}

TEST(NcclGroup, what_is_read_from_the_device_after_a_failure_is_not_taken_for_a_result) {
  const StandinFaults faults("hang,rank=0,group=2");
  std::atomic<int> heard = 0;
  run_with_store(2, [&](uint16_t port, int rank) {
    LateDevice late(nccl_standin());
    const auto group = make_nccl_group(at_port(port, rank, 2), {.timeout_s = 1, .grace_s = 1},
                                       nccl_standin(), late.device);
    uint64_t out = 1, in = 0;
    const Message send{1 - rank, 0, reinterpret_cast<std::byte*>(&out), sizeof(out)};
    const Message receive{1 - rank, 0, reinterpret_cast<std::byte*>(&in), sizeof(in)};
    for (const char* operation : {"sum of norms", "sum of losses"})
      group->exchange({&send, 1}, {&receive, 1}, operation)->wait();
    late.wait();  // comes back because the group is ended
    try {
      group->throw_if_failed();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("rank 1"));
      EXPECT_THAT(error.what(), testing::HasSubstr("sum of losses"));
      ++heard;
    }
  });
  EXPECT_EQ(heard, 2);
}

TEST(NcclGroup, two_ranks_on_one_device_are_refused_by_name) {
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
                testing::AnyOf(
                    testing::HasSubstr("rank 0 and rank 1 have the same CUDA device: NCCL takes"),
                    testing::HasSubstr("rank 1 and rank 0 have the same CUDA device: NCCL takes"),
                    // Of the rank that came first, if it hears of the other's end before it fails.
                    testing::HasSubstr("ended with an error (last seen: start-up)")));
  }
}

}  // namespace
}  // namespace distca
