#include "distca/comm/gloo_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <future>
#include <latch>
#include <optional>
#include <stdexcept>
#include <thread>

#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/comm/health/heartbeat.h"
#include "distca/comm/health/startup.h"
#include "distca/comm/launch/local_store.h"
#include "distca/comm/test_groups.h"

namespace distca {
namespace {

using ::testing::HasSubstr;

/// Timeouts that no test may wait for: they are far longer than any machine takes for the rest.
constexpr CommOptions kVeryPatient{.timeout_s = 600, .grace_s = 1, .startup_timeout_s = 600};
constexpr double kSoon_s = 300;

TEST(GlooGroup, ranks_that_never_come_are_named) {
  ListenSocket socket(Interface::kLoopback, 0);
  const uint16_t port = socket.port();
  LocalStore store(socket);
  try {
    make_gloo_group(at_port(port, 0, 3), {.timeout_s = 1, .grace_s = 1, .startup_timeout_s = 2});
    FAIL() << "met ranks that do not exist";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 1);
    EXPECT_THAT(error.what(), HasSubstr("rank 1 never came, rank 2 never came"));
  }
}

TEST(GlooGroup, a_death_the_launcher_saw_ends_the_start_at_once) {
  ListenSocket socket(Interface::kLoopback, 0);
  const uint16_t port = socket.port();
  LocalStore store(socket);
  store.post_death("test/", 1, "exited with code 3");
  const Stopwatch watch;
  try {
    make_gloo_group(at_port(port, 0, 2), kVeryPatient);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1 exited with code 3"));
  }
  EXPECT_LT(watch.seconds(), kSoon_s);
}

TEST(GlooGroup, a_rank_that_ends_well_while_another_still_connects_is_not_lost) {
  const CommOptions options{.timeout_s = short_timeout_s(1), .grace_s = 1};
  ListenSocket socket(Interface::kLoopback, 0);
  const uint16_t port = socket.port();
  LocalStore store(socket);
  Heartbeat slow(at_port(port, 0, 2), options, [] {});
  {
    Heartbeat ended(at_port(port, 1, 2), options, [] {});
    ended.wait_for_all();
    ended.end_startup();
  }
  slow.wait_for_all();
  std::this_thread::sleep_for(std::chrono::duration<double>(8 * heartbeat_s(options)));
  EXPECT_FALSE(slow.neighbour_lost());
}

/// Two ranks, each of which is connected when its `connect` returns.
void connect_two(const std::array<CommOptions, 2>& options,
                 const std::function<void(int rank)>& connect,
                 const std::function<void(int rank)>& then) {
  run_with_store(2, [&](uint16_t port, int rank) {
    Heartbeat heartbeat(at_port(port, rank, 2), options[rank], [] {});
    heartbeat.wait_for_all();
    connect_by_deadline(
        at_port(port, rank, 2), heartbeat, [connect, rank](double) { connect(rank); },
        [] { return "cannot connect"; });
    then(rank);
    heartbeat.end_startup();
  });
}

// Otherwise its group may end, and takes away connections that others are about to make.
TEST(GlooGroup, nobody_begins_while_another_still_connects) {
  std::promise<void> begun;
  const CommOptions options{.timeout_s = 30, .grace_s = 1};
  connect_two(
      {options, options},
      [&](int rank) {
        if (rank == 0) return;
        EXPECT_EQ(begun.get_future().wait_for(std::chrono::milliseconds(500)),
                  std::future_status::timeout);
      },
      [&](int rank) {
        if (rank == 0) begun.set_value();
      });
}

TEST(GlooGroup, who_does_not_connect_is_named_by_those_who_did) {
  std::promise<void> over;
  std::string said;
  const std::shared_future<void> is_over = over.get_future();
  const double timeout_s = short_timeout_s(4);
  try {
    // Rank 0 gives up first, however slow this machine is.
    connect_two(
        {CommOptions{.timeout_s = timeout_s, .grace_s = 1, .startup_timeout_s = timeout_s},
         CommOptions{.timeout_s = timeout_s, .grace_s = 1, .startup_timeout_s = 600}},
        [is_over](int rank) {
          if (rank == 1) is_over.wait();
        },
        [](int) { FAIL() << "they are not connected"; });
  } catch (const Error& error) {
    said = error.what();
  }
  over.set_value();
  EXPECT_THAT(said, HasSubstr("rank 1 is alive but behind (at connecting all ranks)"));
}

TEST(GlooGroup, without_a_store_the_address_is_named) {
  uint16_t port = 0;
  {
    ListenSocket socket(Interface::kLoopback, 0);
    port = socket.port();
  }
  try {
    make_gloo_group(at_port(port, 1, 2), {.timeout_s = 1, .grace_s = 1, .startup_timeout_s = 1});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("found no store at " + loopback_address() + ":" + std::to_string(port)));
  }
}

TEST(GlooGroup, a_rank_that_loses_the_store_says_so_and_ends_its_wait) {
  ListenSocket socket(Interface::kLoopback, 0);
  const uint16_t port = socket.port();
  std::optional<LocalStore> store(std::in_place, socket);
  std::latch connected(3);
  std::string said[2];
  auto run = [&](int rank) {
    auto group = make_gloo_group(at_port(port, rank, 2), kVeryPatient);
    connected.arrive_and_wait();
    std::byte byte{};
    const Message in{.peer = 1 - rank, .tag = 1, .data = &byte, .bytes = 1};
    try {
      group->exchange({}, {&in, 1}, "combine")->wait();
    } catch (const Error& error) {
      said[rank] = error.what();
    }
  };
  const Stopwatch watch;
  std::thread ranks[2] = {std::thread(run, 0), std::thread(run, 1)};
  connected.arrive_and_wait();
  store.reset();
  for (std::thread& rank : ranks) rank.join();
  EXPECT_LT(watch.seconds(), kSoon_s);
  for (int rank : {0, 1}) {
    EXPECT_THAT(said[rank], HasSubstr(fmt::format("rank {} lost the store at {}:{} in ", rank,
                                                  loopback_address(), port)));
    EXPECT_THAT(said[rank], ::testing::Not(HasSubstr("\n")));
  }
}

TEST(GlooGroup, a_rank_that_sends_nothing_is_named_behind_by_all_with_one_diagnosis) {
  std::mutex mutex;
  std::vector<std::string> diagnoses;
  std::latch over(2);
  EXPECT_THROW(run_on(Backend::kGloo, 3, {.timeout_s = short_timeout_s(2), .grace_s = 1},
                      [&](Communicator& group) {
                        std::byte byte{};
                        group.set_step(4);
                        const Message in{.peer = 2, .tag = 1, .data = &byte, .bytes = 1};
                        try {
                          if (group.rank() == 2) {
                            over.wait();
                          } else {
                            group.exchange({}, {&in, 1}, "forward layer 1 dispatch")->wait();
                          }
                        } catch (const Error& error) {
                          std::lock_guard lock(mutex);
                          diagnoses.push_back(error.what());
                          over.count_down();
                          throw;
                        }
                      }),
               Error);
  ASSERT_EQ(diagnoses.size(), 2u);
  EXPECT_EQ(diagnoses[0], diagnoses[1]);
  EXPECT_THAT(diagnoses[0], HasSubstr("rank 2 is alive but behind"));
  EXPECT_THAT(diagnoses[0], HasSubstr("for it in step 4, forward layer 1 dispatch"));
}

TEST(GlooGroup, a_rank_that_comes_just_after_the_timeout_is_named_behind) {
  const double timeout_s = short_timeout_s(4);  // heartbeats are looked at for another 3/10 of it
  std::mutex mutex;
  std::vector<std::string> diagnoses;
  std::latch waiting(3);
  EXPECT_THROW(
      run_on(Backend::kGloo, 3, {.timeout_s = timeout_s, .grace_s = 1},
             [&](Communicator& group) {
               std::byte byte{};
               group.set_step(4);
               waiting.arrive_and_wait();
               if (group.rank() == 2) {
                 std::this_thread::sleep_for(std::chrono::duration<double>(1.12 * timeout_s));
               }
               // Each waits for the next, and rank 2 for one that has given up.
               const Message in{
                   .peer = (group.rank() + 1) % 3, .tag = 1, .data = &byte, .bytes = 1};
               try {
                 group.exchange({}, {&in, 1}, "dispatch")->wait();
               } catch (const Error& error) {
                 std::lock_guard lock(mutex);
                 diagnoses.push_back(error.what());
                 throw;
               }
             }),
      Error);
  EXPECT_THAT(diagnoses, ::testing::Each(HasSubstr("rank 2 is alive but behind (at step 4")));
}

TEST(GlooGroup, a_failed_rank_ends_the_waits_of_the_others_early) {
  std::atomic<int> num_failed = 0;
  std::latch connected(3);  // a rank that fails earlier ends the others' start, not their waits
  const Stopwatch watch;
  EXPECT_THROW(run_on(Backend::kGloo, 3, kVeryPatient,
                      [&](Communicator& group) {
                        connected.arrive_and_wait();
                        if (group.rank() == 1) throw std::out_of_range("mine");
                        std::byte byte{};
                        // Rank 2 waits for rank 0, which waits for the failed one.
                        const Message in{
                            .peer = group.rank() == 0 ? 1 : 0, .tag = 1, .data = &byte, .bytes = 1};
                        try {
                          group.exchange({}, {&in, 1}, "combine")->wait();
                        } catch (const Error& error) {
                          EXPECT_THAT(error.what(), HasSubstr("rank 1 ended with an error"));
                          ++num_failed;
                        }
                      }),
               std::out_of_range);
  EXPECT_EQ(num_failed, 2);
  EXPECT_LT(watch.seconds(), kSoon_s);
}

}  // namespace
}  // namespace distca
