#include "distca/comm/thread_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <fstream>
#include <latch>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/comm/thread_streams_testing.h"

namespace distca {
namespace {

using ::testing::HasSubstr;

constexpr CommOptions kPatient{.timeout_s = 300, .grace_s = 1};
// Where one rank waits in vain. Before it does, all ranks are where the test wants them.
constexpr CommOptions kHasty{.timeout_s = 1, .grace_s = 300};

/// Counts `over` down once a rank that waits in vain has given up, for those that compute
/// meanwhile.
class GivesUp {
 public:
  explicit GivesUp(std::latch& over) : over_(over) {}
  ~GivesUp() { over_.count_down(); }

 private:
  std::latch& over_;
};

Message message(int peer, uint32_t tag, std::byte& byte) {
  return {.peer = peer, .tag = tag, .data = &byte, .bytes = 1};
}

TEST(ThreadGroup, sends_complete_without_the_receiver_waiting_for_them) {
  // Rank 1 issues receive A, then waits for B only, which rank 0 sends after A is gone.
  run_ranks(2, kPatient, [](Communicator& group) {
    std::byte a{1}, b{2};
    if (group.rank() == 0) {
      const Message first = message(1, 0, a), second = message(1, 1, b);
      group.exchange({&first, 1}, {}, "a")->wait();
      group.exchange({&second, 1}, {}, "b")->wait();
    } else {
      a = b = std::byte{0};
      const Message first = message(0, 0, a), second = message(0, 1, b);
      auto pending = group.exchange({}, {&first, 1}, "a");
      group.exchange({}, {&second, 1}, "b")->wait();
      EXPECT_EQ(b, std::byte{2});
      pending->wait();
      EXPECT_EQ(a, std::byte{1});
    }
  });
}

TEST(ThreadGroup, messages_of_one_tag_arrive_in_order) {
  run_ranks(2, kPatient, [](Communicator& group) {
    std::byte bytes[100];
    std::vector<Message> messages;
    for (int i = 0; i < 100; ++i) {
      bytes[i] = std::byte(group.rank() == 0 ? i : 255);
      messages.push_back(message(1 - group.rank(), 5, bytes[i]));
    }
    if (group.rank() == 0) {
      group.exchange(messages, {}, "numbers")->wait();
    } else {
      group.exchange({}, messages, "numbers")->wait();
      for (int i = 0; i < 100; ++i) EXPECT_EQ(bytes[i], std::byte(i));
    }
  });
}

TEST(ThreadGroup, the_first_failure_is_rethrown_and_ends_all_waits) {
  const Stopwatch watch;
  EXPECT_THROW(run_ranks(4, kPatient,
                         [](Communicator& group) {
                           std::byte byte{};
                           if (group.rank() == 2) throw std::out_of_range("mine");
                           const Message in = message((group.rank() + 1) % 4, 0, byte);
                           group.exchange({}, {&in, 1}, "for ever")->wait();
                         }),
               std::out_of_range);
  EXPECT_LT(watch.seconds(), kPatient.timeout_s / 2);
}

TEST(ThreadGroup, the_others_report_which_rank_failed_and_where) {
  std::atomic<int> num_failed = 0;
  EXPECT_THROW(run_ranks(3, kPatient,
                         [&](Communicator& group) {
                           std::byte byte{};
                           const Message in = message(1, 0, byte);
                           if (group.rank() == 1) {
                             group.set_step(7);
                             group.exchange({}, {}, "forward layer 2 core_attention")->wait();
                             throw std::out_of_range("mine");
                           }
                           try {
                             group.exchange({}, {&in, 1}, "combine")->wait();
                           } catch (const Error& error) {
                             EXPECT_STREQ(error.what(),
                                          "rank 1 ended with an error (last seen: step 7, forward "
                                          "layer 2 core_attention)");
                             ++num_failed;
                           }
                         }),
               std::out_of_range);
  EXPECT_EQ(num_failed, 2);
}

TEST(ThreadGroup, a_rank_that_computes_for_ever_is_named_and_does_not_keep_the_process) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(run_ranks(2, {.timeout_s = 0.2, .grace_s = 0.3},
                        [](Communicator& group) {
                          if (group.rank() == 1) std::this_thread::sleep_for(std::chrono::hours(1));
                          std::byte byte{};
                          const Message in = message(1, 0, byte);
                          group.exchange({}, {&in, 1}, "dispatch")->wait();
                        }),
              ::testing::ExitedWithCode(1),
              "^distca: error: rank 1 is alive but behind .*; rank 0 waited .* for it in dispatch "
              "\\(1 of 2 threads still computed\\)\n$");
}

TEST(ThreadGroup, a_rank_with_fewer_exchanges_in_earlier_steps_is_not_behind) {
  std::latch there(3), over(2);
  try {
    run_ranks(3, kHasty, [&](Communicator& group) {
      std::byte byte{};
      group.set_step(0);
      for (int i = 0; i < 5 && group.rank() < 2; ++i) group.exchange({}, {}, "sum")->wait();
      group.set_step(1);
      there.arrive_and_wait();
      if (group.rank() == 1) return over.wait();
      const GivesUp gives_up(over);
      const Message in = message(1, 0, byte);
      group.exchange({}, {&in, 1}, "dispatch")->wait();
    });
    FAIL() << "nobody sent anything";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1 is alive but behind"));
  }
}

TEST(ThreadGroup, a_rank_that_has_no_part_in_the_others_sums_is_not_behind) {
  // Rank 0 sums with rank 2, then all have an exchange, after which rank 2 hangs.
  std::latch begun(3), there(3), over(2);
  try {
    run_ranks(3, kHasty, [&](Communicator& group) {
      std::byte byte{}, other{};
      group.set_step(1);
      begun.arrive_and_wait();
      if (group.rank() != 1) {
        const Message out = message(2 - group.rank(), 0, byte);
        const Message in = message(2 - group.rank(), 0, other);
        for (int i = 0; i < 5; ++i) group.exchange({&out, 1}, {&in, 1}, "sum")->wait();
      }
      group.exchange({}, {}, "dispatch")->wait();
      there.arrive_and_wait();
      if (group.rank() == 2) return over.wait();
      const GivesUp gives_up(over);
      const Message in = message(2, 1, byte);
      group.exchange({}, {&in, 1}, "combine")->wait();
    });
    FAIL() << "nobody sent anything";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 2 is alive but behind (at step 1, dispatch)"));
  }
}

TEST(ThreadGroup, who_hangs_in_a_sum_over_some_ranks_is_behind_not_who_has_no_part_in_it) {
  // Worker 1 hangs within the sums with worker 0; server 2 has gone on.
  std::latch begun(3), there(3), over(2);
  try {
    run_ranks(3, kHasty, [&](Communicator& whole) {
      whole.set_step(1);
      whole.exchange({}, {}, "combine")->wait();
      std::byte byte{}, other{};
      begun.arrive_and_wait();
      if (whole.rank() == 2) {
        there.arrive_and_wait();
        const GivesUp gives_up(over);
        const Message in = message(0, 1, byte);
        whole.exchange({}, {&in, 1}, "loss sum")->wait();
      }
      const auto group = whole.split(std::array{0, 1});
      const Message out = message(1 - group->rank(), 0, byte);
      const Message in = message(1 - group->rank(), 0, other);
      for (int i = 0; i < 5; ++i) group->exchange({&out, 1}, {&in, 1}, "sum")->wait();
      there.arrive_and_wait();
      if (group->rank() == 1) return over.wait();
      const GivesUp gives_up(over);
      group->exchange({&out, 1}, {&in, 1}, "sum")->wait();
    });
    FAIL() << "nobody sent anything";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1 is alive but behind (at step 1, sum)"));
  }
}

TEST(ThreadGroup, a_wait_beyond_the_timeout_names_the_rank_behind) {
  std::latch there(2), over(1);
  try {
    run_ranks(2, kHasty, [&](Communicator& group) {
      std::byte byte{};
      group.set_step(3);
      there.arrive_and_wait();
      if (group.rank() == 1) return over.wait();
      const GivesUp gives_up(over);
      const Message in = message(1, 0, byte);
      group.exchange({}, {&in, 1}, "layer 1 dispatch")->wait();
    });
    FAIL() << "nobody sent anything";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 1);
    EXPECT_THAT(error.what(), HasSubstr("rank 1 is alive but behind"));
    EXPECT_THAT(error.what(), ::testing::ContainsRegex(
                                  "rank 0 waited [0-9.]+ s for it in step 3, layer 1 dispatch"));
  }
}

TEST(ThreadGroup, a_size_mismatch_is_our_bug) {
  EXPECT_THROW(run_ranks(2, kPatient,
                         [](Communicator& group) {
                           std::byte bytes[2] = {};
                           const Message one{
                               .peer = 1 - group.rank(), .data = bytes, .bytes = 1 + group.rank()};
                           if (group.rank() == 0) {
                             group.exchange({&one, 1}, {}, "x")->wait();
                           } else {
                             group.exchange({}, {&one, 1}, "x")->wait();
                           }
                         }),
               CheckFailure);
}

TEST(ThreadGroup, a_device_waits_for_messages_where_its_threads_do_not) {
  // Each round sends what the device adds up behind the round before, from memory it overwrites.
  constexpr int kRounds = 5;
  testing::ThreadStreams streams(2, std::chrono::milliseconds(20));
  struct Memory {
    unsigned char out = 1, in = 0;
  } memory[2];
  std::atomic<int> steps_on_device = 0;
  std::atomic<int> steps_when_posted = 0;
  run_ranks(
      2, kPatient,
      [&](Communicator& group) {
        EXPECT_EQ(group.cuda_device(), 3);
        streams.use_stream(group.rank());
        Memory& mine = memory[group.rank()];
        for (int round = 0; round < kRounds; ++round) {
          const Message out{1 - group.rank(), 0, reinterpret_cast<std::byte*>(&mine.out), 1};
          const Message in{1 - group.rank(), 0, reinterpret_cast<std::byte*>(&mine.in), 1};
          const auto pending = group.exchange({&out, 1}, {&in, 1}, "swap");
          pending->wait_received();
          streams.give([&] { mine.in = static_cast<unsigned char>(mine.in + mine.out); });
          pending->wait();
          streams.give([&] {
            mine.out = mine.in;
            ++steps_on_device;
          });
        }
        steps_when_posted = steps_on_device.load();
      },
      streams.device(3));
  EXPECT_LT(steps_when_posted, 2 * kRounds) << "the host waited for the device";
  streams.end();
  for (const Memory& mine : memory) EXPECT_EQ(mine.out, 1 << kRounds);
}

TEST(ThreadGroup, each_thread_enters_the_device_before_its_body_and_leaves_behind_it) {
  std::mutex mutex;
  std::set<std::thread::id> entered, left;
  const auto put = [&mutex](std::set<std::thread::id>& ids) {
    const std::scoped_lock lock(mutex);
    ids.insert(std::this_thread::get_id());
  };
  const auto has = [&mutex](const std::set<std::thread::id>& ids) {
    const std::scoped_lock lock(mutex);
    return ids.contains(std::this_thread::get_id());
  };
  ThreadDevice device;
  device.begin_rank = [&] {
    put(entered);
    return std::shared_ptr<void>(&device, [&](void*) { put(left); });
  };
  run_ranks(
      3, kPatient, [&](Communicator&) { EXPECT_TRUE(has(entered) && !has(left)); }, device);
  EXPECT_EQ(entered.size(), 3u);
  EXPECT_EQ(left, entered);
  device.begin_rank = []() -> std::shared_ptr<void> { throw Error(ErrorKind::kIo, "no device"); };
  EXPECT_THROW(run_ranks(
                   2, kPatient, [](Communicator&) { FAIL(); }, device),
               Error);
}

TEST(ThreadGroup, a_copy_that_fails_ends_the_waits_of_all) {
  ThreadDevice device;
  device.copy = [](std::byte*, const std::byte*, int64_t, const DeviceMark&,
                   const DeviceMark&) -> DeviceMark {
    throw std::runtime_error("out of memory\nstack");
  };
  std::atomic<int> num_failed = 0;
  const Stopwatch watch;
  try {
    run_ranks(
        3, kPatient,
        [&](Communicator& group) {
          std::byte byte{};
          // Rank 2 waits for a third, who has nothing to do with the copy.
          const Message one = message((group.rank() + 1) % 2, 0, byte);
          try {
            if (group.rank() == 1) {
              group.exchange({&one, 1}, {}, "dispatch")->wait();
            } else {
              group.exchange({}, {&one, 1}, "dispatch")->wait();
            }
          } catch (const Error& error) {
            EXPECT_THAT(error.what(), HasSubstr(" could not copy a message of rank "));
            EXPECT_THAT(error.what(), ::testing::EndsWith(" in dispatch: out of memory"));
            ++num_failed;
            throw;
          }
        },
        device);
    FAIL() << "nothing was copied";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 1);
  }
  EXPECT_EQ(num_failed, 3);
  EXPECT_LT(watch.seconds(), kPatient.timeout_s / 2);
}

/// While it lives, this process can start two threads more.
class RoomForTwoThreads {
 public:
  RoomForTwoThreads() {
    constexpr size_t kStack = size_t{1} << 30;  // only reserved, never touched
    pthread_getattr_default_np(&attributes_);
    pthread_attr_t large = attributes_;
    pthread_attr_setstacksize(&large, kStack);
    pthread_setattr_default_np(&large);
    size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    getrlimit(RLIMIT_AS, &limit_);
    rlimit tight = limit_;
    tight.rlim_cur = pages * static_cast<size_t>(sysconf(_SC_PAGESIZE)) + kStack * 5 / 2;
    setrlimit(RLIMIT_AS, &tight);
  }
  ~RoomForTwoThreads() {
    setrlimit(RLIMIT_AS, &limit_);
    pthread_setattr_default_np(&attributes_);
  }

 private:
  pthread_attr_t attributes_;
  rlimit limit_;
};

TEST(ThreadGroup, a_thread_that_the_system_refuses_ends_the_ranks_already_started) {
  const RoomForTwoThreads room;
  std::atomic<int> num_failed = 0;
  try {
    run_ranks(4, kPatient, [&](Communicator& group) {
      std::byte byte{};
      const Message in = message(3, 0, byte);
      try {
        group.exchange({}, {&in, 1}, "for ever")->wait();
      } catch (const Error&) {
        ++num_failed;
        throw;
      }
    });
    FAIL() << "four threads";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kIo);
    EXPECT_THAT(error.what(), HasSubstr("cannot start rank 2 of 4 as a thread: "));
  }
  EXPECT_EQ(num_failed, 2);
}

}  // namespace
}  // namespace distca
