// A process group and a store that somebody else made, as a PyTorch program has them.

#include "distca/comm/c10d_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <array>
#include <chrono>
#include <functional>
#include <latch>
#include <span>
#include <thread>

#include "distca/base/error.h"
#include "distca/comm/collectives.h"
#include "distca/comm/launch/local_store.h"
#include "distca/comm/ordered_sum.h"
#include "distca/comm/test_groups.h"

namespace distca {
namespace {

using ::testing::HasSubstr;

struct Made {
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::Backend> group;
};

Made make(uint16_t port, int rank, int size) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.waitWorkers = false;
  auto store = c10::make_intrusive<c10d::PrefixStore>(
      "theirs", c10::make_intrusive<c10d::TCPStore>(loopback_address(), options));
  auto gloo = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(300));
  gloo->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(loopback_address()));
  gloo->threads = 1;
  auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, gloo);
  return {std::move(store), std::move(group)};
}

/// Ranks as threads, each with a group and a store of its own; rethrows the first failure.
void run_made(int size, const std::function<void(const Made&)>& body) {
  run_with_store(size, [&](uint16_t port, int rank) { body(make(port, rank, size)); });
}

/// Returns the results of sums and gathers of a group, and of one split from it, on this rank.
std::vector<double> results(Communicator& whole) {
  std::vector<double> all;
  const auto sums = [&](Communicator& group) {
    std::array<double, 5> values = {0.1, 1e17, -1e17, 1.0 / 3, -0.0};
    for (double& value : values) value *= whole.rank() + 1;
    ordered_sum(group, values, "sum");
    all.insert(all.end(), values.begin(), values.end());
    const std::byte mine{static_cast<unsigned char>(whole.rank())};
    for (const std::byte one : all_gather_bytes(group, {&mine, 1}, "gather")) {
      all.push_back(std::to_integer<int>(one));
    }
  };
  sums(whole);
  if (whole.rank() != 1) sums(*whole.split(std::array{2, 0}));
  barrier(whole, "barrier");
  return all;
}

TEST(C10dGroup, made_elsewhere_gives_the_bits_of_any_other) {
  std::vector<std::vector<double>> threads(3), made(3);
  run_on(Backend::kThreads, 3, kPatient,
         [&](Communicator& group) { threads[group.rank()] = results(group); });
  run_made(3, [&](const Made& theirs) {
    const auto group = make_c10d_group(*theirs.group, *theirs.store, kPatient);
    EXPECT_EQ(group->size(), 3);
    made[group->rank()] = results(*group);
  });
  EXPECT_EQ(made, threads);
}

TEST(C10dGroup, is_still_there_when_its_communicator_has_gone) {
  run_made(2, [](const Made& theirs) {
    make_c10d_group(*theirs.group, *theirs.store, kPatient).reset();
    const auto again = c10::make_intrusive<c10d::PrefixStore>("second", theirs.store);
    const auto group = make_c10d_group(*theirs.group, *again, kPatient);
    barrier(*group, "barrier");
  });
}

TEST(C10dGroup, a_store_serves_one_communicator) {
  run_made(1, [](const Made& theirs) {
    const auto group = make_c10d_group(*theirs.group, *theirs.store, kPatient);
    try {
      make_c10d_group(*theirs.group, *theirs.store, kPatient);
      FAIL() << "two heartbeats under the same keys";
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2);
      EXPECT_THAT(error.what(), HasSubstr("the store is another communicator's: another process"));
    }
  });
}

TEST(C10dGroup, ranks_that_compute_too_long_or_never_come_are_named) {
  const double timeout_s = short_timeout_s(1);
  const CommOptions hasty{.timeout_s = timeout_s, .grace_s = 1, .startup_timeout_s = 2 * timeout_s};
  std::string said;
  try {
    run_made(3, [&](const Made& theirs) {
      if (theirs.group->getRank() == 1) return;
      make_c10d_group(*theirs.group, *theirs.store, hasty);
    });
  } catch (const Error& error) {
    said = error.what();
  }
  EXPECT_THAT(said, HasSubstr("rank 1 never came"));
  std::latch over(1);
  try {
    run_made(2, [&](const Made& theirs) {
      const auto group =
          make_c10d_group(*theirs.group, *theirs.store, {.timeout_s = timeout_s, .grace_s = 1});
      if (group->rank() == 1) return over.wait();
      std::byte byte{};
      const Message in{.peer = 1, .tag = 1, .data = &byte, .bytes = 1};
      try {
        group->exchange({}, {&in, 1}, "forward layer 1 dispatch")->wait();
      } catch (const Error&) {
        over.count_down();
        throw;
      }
    });
    FAIL() << "nobody sent anything";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1 is alive but behind"));
    EXPECT_THAT(error.what(), HasSubstr("for it in forward layer 1 dispatch"));
  }
}

}  // namespace
}  // namespace distca
