#include "distca/comm/launch/run_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <stdexcept>
#include <thread>

#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/comm/gloo_group.h"
#include "distca/comm/health/heartbeat.h"
#include "distca/comm/launch/local_store.h"
#include "distca/comm/launch/store_process.h"
#include "distca/comm/test_groups.h"

namespace distca {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class RunStoreTest : public ::testing::Test {
 protected:
  Rendezvous at(int rank, int size) { return at_port(port_, rank, size); }

  static std::string refusal(const std::function<void()>& body) {
    try {
      body();
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2) << error.what();
      return error.what();
    }
    return "accepted";
  }

  static uint16_t free_port() { return ListenSocket(Interface::kLoopback, 0).port(); }

  /// A rank whose heartbeat says that it is there, and then sends no more.
  void post_once(RunStore& store, int rank) {
    store.set(fmt::format("test/heartbeat/{}", rank),
              R"({"awaits":[],"beat":1,"operation":"start-up","state":0,"step":-1,"wall_s":0})");
    store.add("test/arrived", 1);
  }

  ListenSocket socket_{Interface::kLoopback, 0};
  const uint16_t port_ = socket_.port();
  std::optional<LocalStore> store_{std::in_place, socket_};
  const CommOptions options_{.timeout_s = 10, .grace_s = 0.2, .startup_timeout_s = 20};
};

TEST_F(RunStoreTest, a_place_that_is_taken_another_size_and_another_job_are_refused) {
  const RunStore first(at(1, 2), options_);
  const std::string start =
      fmt::format("{}:{} belongs to another run: ", loopback_address(), port_);
  EXPECT_THAT(refusal([&] { RunStore(at(1, 2), options_); }),
              AllOf(HasSubstr(start + "another process is its rank 1;"), Not(HasSubstr("\n"))));
  EXPECT_THAT(refusal([&] { RunStore(at(2, 3), options_); }),
              HasSubstr(start + "it has 2 ranks, this one 3;"));
  Rendezvous step = at(0, 2);
  step.run = "Slurm job 4711 step 1";
  step.prefix = "distca/4711 step 1/";
  EXPECT_THAT(refusal([&] { RunStore(step, options_); }),
              HasSubstr(start + "it is of the test, this one of Slurm job 4711 step 1;"));
  const RunStore other(at(0, 2), options_);  // that place is free still
}

TEST_F(RunStoreTest, the_owner_that_the_keeper_names_holds_whoever_comes_first) {
  store_->belong_to("Slurm job 1 step 0", "test/", 2);
  EXPECT_THAT(refusal([&] { RunStore(at(0, 2), options_); }),
              HasSubstr("it is of Slurm job 1 step 0, this one of the test"));
}

TEST_F(RunStoreTest, a_restart_with_fresh_keys_is_welcome) {
  const RunStore first(at(1, 2), options_);
  Rendezvous again = at(1, 3);
  again.prefix = "test again/";
  const RunStore second(again, options_);
}

TEST_F(RunStoreTest, a_run_that_is_over_takes_nobody_and_its_successor_is_met) {
  store_->close_to_newcomers();
  EXPECT_THAT(refusal([&] { RunStore(at(1, 2), options_); }),
              HasSubstr("belongs to another run: it is over"));
  std::thread next([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    store_.reset();
    ListenSocket socket(Interface::kLoopback, port_);
    store_.emplace(socket);
  });
  const RunStore met(at(1, 2), {.timeout_s = 300, .grace_s = 300, .startup_timeout_s = 300});
  next.join();
}

TEST_F(RunStoreTest, connecting_obeys_the_start_up_deadline) {
  const CommOptions options{.timeout_s = 5, .grace_s = 0.2, .startup_timeout_s = 3};
  Heartbeat other(at(1, 2), options, [] {});  // alive, and never connects
  try {
    make_gloo_group(at(0, 2), options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 1);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("rank 1 is alive but behind"), HasSubstr("connecting all ranks")));
  }
}

TEST_F(RunStoreTest, a_rank_that_dies_while_connecting_is_named_within_a_few_heartbeats) {
  const CommOptions options{.timeout_s = 2, .grace_s = 0.2, .startup_timeout_s = 300};
  RunStore dead(at(1, 2), options);
  post_once(dead, 1);
  const Stopwatch watch;
  try {
    make_gloo_group(at(0, 2), options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1 is silent since "));
  }
  EXPECT_LT(watch.seconds(), options.startup_timeout_s);
}

TEST_F(RunStoreTest, a_rank_that_dies_before_all_have_come_is_named_within_a_few_heartbeats) {
  const CommOptions options{.timeout_s = 2, .grace_s = 0.2, .startup_timeout_s = 300};
  RunStore dead(at(1, 3), options);
  post_once(dead, 1);
  const Stopwatch watch;
  try {
    make_gloo_group(at(0, 3), options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1 is silent since "));
  }
  EXPECT_LT(watch.seconds(), options.startup_timeout_s);
}

TEST_F(RunStoreTest, what_64_ranks_ask_of_the_store_grows_with_the_ranks_not_with_their_square) {
  constexpr int kRanks = 64;
  const CommOptions options{.timeout_s = 10, .grace_s = 300, .startup_timeout_s = 300};
  std::vector<std::unique_ptr<Heartbeat>> heartbeats;
  const Stopwatch watch;
  for (int rank = 0; rank < kRanks; ++rank) {
    heartbeats.push_back(std::make_unique<Heartbeat>(at(rank, kRanks), options, [] {}));
  }
  for (auto& heartbeat : heartbeats) heartbeat->wait_for_all();
  const auto keys = [&] {
    int64_t sum = 0;
    for (const auto& heartbeat : heartbeats) sum += heartbeat->keys_handled();
    return sum;
  };
  // Every 50 ms each rank asked for 64 keys: 1280 a second.
  const double bound_of_start = kRanks * (20 + 10 * watch.seconds());
  RecordProperty("keys_until_all_are_here", std::to_string(keys()));
  EXPECT_LT(static_cast<double>(keys()), bound_of_start);

  std::vector<std::string> diagnoses(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      diagnoses[rank] = heartbeats[rank]->diagnose({.rank = rank, .at = {.operation = "combine"}});
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& diagnosis : diagnoses) EXPECT_EQ(diagnosis, diagnoses[0]);
  heartbeats[0].reset();  // its last heartbeat is in
  heartbeats.erase(heartbeats.begin());
  RecordProperty("keys_until_all_have_a_diagnosis", std::to_string(keys()));
  // Twice 64 keys a rank every 50 ms for three seconds: 7680.
  EXPECT_LT(static_cast<double>(keys()), kRanks * (60 + 10 * watch.seconds()));
}

TEST_F(RunStoreTest, an_address_that_is_not_known_is_refused_before_anybody_waits) {
  Rendezvous nowhere = at(0, 2);
  nowhere.address = "nowhere.invalid";
  nowhere.port = free_port();
  nowhere.store_host = StoreHost::kStoreProcess;
  const auto expected =
      AllOf(HasSubstr("rank 0 of 2 (from the test) finds no address of \"nowhere.invalid\""),
            HasSubstr("where rank 0 runs: "), Not(HasSubstr("\n")));
  EXPECT_THAT(refusal([&] { start_store_process(nowhere, 1); }), expected);
  const ListenSocket still_free(Interface::kLoopback, nowhere.port);
  EXPECT_THAT(refusal([&] { RunStore(nowhere, options_); }), expected);
}

TEST_F(RunStoreTest, the_store_says_how_long_it_was_looked_for_and_what_the_system_said) {
  store_.reset();
  try {
    RunStore(at(1, 2), {.timeout_s = 1, .grace_s = 1, .startup_timeout_s = 0.5});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::ContainsRegex("within [0-9]+\\.[0-9] s: .+; does rank 0"));
    EXPECT_THAT(error.what(), Not(HasSubstr("\n")));
  }
}

}  // namespace
}  // namespace distca
