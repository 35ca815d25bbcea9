// A rank that is killed, over the stand-in for NCCL: ranks are processes, of which one dies by
// SIGKILL at a moment that chance takes, and all others name it. A hundred rounds.
//
// Ranks are forked, because a program that loads PyTorch takes longer to start than a round takes.
// So this program has no other test, and the store has a process, too: whoever forks has one
// thread.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/base/random.h"
#include "distca/comm/launch/local_store.h"
#include "distca/comm/nccl/nccl_group.h"
#include "distca/comm/test_groups.h"

namespace distca {
namespace {

constexpr int kRounds = 100, kRanks = 3;
constexpr int kAtOnce = 34;  // most of a round is waiting
// A machine that is busy may leave the store without a turn for many seconds: grace_s.
constexpr CommOptions kPatientOptions{.timeout_s = 300, .grace_s = 60, .startup_timeout_s = 300};
// A machine that is busy takes so much longer than the deadline of a wait and the three heartbeats
// in which a silent rank is found out.
constexpr double kLate_s = 100;
/// Seconds until ranks are taken for hanging.
double patience_s(const CommOptions& options) { return 300 + 3 * options.timeout_s; }
constexpr int kHealthyExchanges = 20;
constexpr int64_t kBytes = 100'000;  // the size of a message: more than a socket holds at once

void pause_us(uint64_t microseconds) {
  std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
}

/// The rank that dies in a round, and when: before some exchange, once it is issued, behind the
/// wait that follows it, or at any time in the 3 ms from when the rank comes to it. In a round
/// below 0 nobody dies: its rank is -1.
struct Death {
  enum When { kBefore, kIssued, kBehind, kAnyTime };
  explicit Death(int round) {
    if (round < 0) return;
    Random random(20, static_cast<uint64_t>(round));
    rank = static_cast<int>(random.below(kRanks));
    exchange = static_cast<int>(random.below(8));
    when = static_cast<When>(random.below(4));
    after_us = random.below(3000);
  }
  int rank = -1, exchange = 0;
  When when = kBefore;
  uint64_t after_us = 0;
};

// --- processes --------------------------------------------------------------------------------

/// A process, with what it has said by its end, and its exit status.
struct Process {
  pid_t id = -1;
  FileDescriptor says = FileDescriptor();
  std::string said = {};
  int status = -1;
};

/// Forks a process that calls `body` with what it can say something by. It ends with this one.
Process forked(const std::function<void(int says)>& body) {
  std::array<int, 2> ends{};
  DISTCA_CHECK(pipe(ends.data()) == 0, "no pipe");
  FileDescriptor out(ends[0]), in(ends[1]);
  const pid_t id = fork();
  DISTCA_CHECK(id >= 0, "no process");
  if (id == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    try {
      body(in.get());
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      _exit(1);
    }
    _exit(0);
  }
  return {.id = id, .says = std::move(out)};
}

void say(int to, const std::string& text) {
  DISTCA_CHECK(write(to, text.data(), text.size()) == static_cast<ssize_t>(text.size()), "pipe");
}

int threads_of_this_process() {
  int count = 0;
  for ([[maybe_unused]] const auto& thread : std::filesystem::directory_iterator("/proc/self/task"))
    ++count;
  return count;
}

/// The store of some rounds, until this is destroyed. It reports a death to ranks, as our launcher.
class StoreProcess {
 public:
  StoreProcess() {
    ListenSocket socket(Interface::kLoopback, 0);
    port = socket.port();
    std::array<int, 2> ends{};
    DISTCA_CHECK(pipe(ends.data()) == 0, "no pipe");
    FileDescriptor received(ends[0]);
    reports_ = FileDescriptor(ends[1]);
    process_ = forked([&](int) {
      reports_ = FileDescriptor();
      LocalStore store(socket);
      for (DeathReport one; read(received.get(), &one, sizeof(one)) == sizeof(one);)
        store.post_death(prefix(one.round), one.rank, "was killed by signal 9 (SIGKILL)");
    });
  }
  ~StoreProcess() {
    reports_ = FileDescriptor();
    waitpid(process_.id, nullptr, 0);
  }
  StoreProcess(const StoreProcess&) = delete;
  StoreProcess& operator=(const StoreProcess&) = delete;

  static std::string prefix(int round) { return fmt::format("round {}/", round); }
  /// For processes that are forked from now on: they are not to keep it alive.
  int reports() const { return reports_.get(); }
  void post_death(int round, int rank) {
    const DeathReport one{round, rank};
    DISTCA_CHECK(write(reports_.get(), &one, sizeof(one)) == sizeof(one), "the store has ended");
  }

  uint16_t port = 0;

 private:
  struct DeathReport {
    int round = 0, rank = 0;
  };
  FileDescriptor reports_;
  Process process_;
};

// --- ranks ------------------------------------------------------------------------------------

/// Says when, and dies.
[[noreturn]] void die(int says) {
  say(says, fmt::format("{} killed", steady_seconds()));
  while (true) raise(SIGKILL);
}

/// Exchanges messages with all others, until one of the ranks dies, or some times where nobody
/// does; the last exchange but one is still under way when the next one is issued.
void exchange_until_one_dies(Communicator& group, int round, std::byte* memory, int says) {
  const int most = round < 0 ? kHealthyExchanges : 10'000;  // none gets there
  const Death death(round);
  const bool dies = group.rank() == death.rank;
  Random random(21, static_cast<uint64_t>(round) * kRanks + group.rank());
  std::jthread killer;
  std::array<std::unique_ptr<PendingExchange>, 2> pending;
  for (int number = 0; number < most; ++number) {
    group.set_step(number);
    const bool now = dies && number == death.exchange;
    if (now && death.when == Death::kBefore) die(says);
    if (now && death.when == Death::kAnyTime) {
      killer = std::jthread([&] {
        pause_us(death.after_us);
        die(says);
      });
    }
    std::vector<Message> sends, receives;
    for (int peer = 0; peer < kRanks; ++peer) {
      if (peer == group.rank()) continue;
      std::byte* const at = memory + (2 * peer + number % 2) * 2 * kBytes;
      sends.push_back({peer, 0, at, kBytes});
      receives.push_back({peer, 0, at + kBytes, kBytes});
    }
    pending[number % 2] = group.exchange(sends, receives, "dispatch");
    if (now && death.when == Death::kIssued) die(says);
    if (number > 0) pending[1 - number % 2]->wait();
    if (now && death.when == Death::kBehind) die(says);
    pause_us(random.below(3000));
  }
  for (auto& one : pending) one->wait();
}

/// A rank's whole life; says what its error says.
void live(int round, int rank, uint16_t port, const CommOptions& options, int says) {
  Rendezvous rendezvous = at_port(port, rank, kRanks);
  rendezvous.prefix = StoreProcess::prefix(round);
  std::string why = "no error";
  std::vector<std::byte> memory(4 * kRanks * kBytes);  // until the group is gone
  try {
    exchange_until_one_dies(
        *make_nccl_group(rendezvous, options, nccl_standin(), host_nccl_device(nccl_standin())),
        round, memory.data(), says);
  } catch (const Error& error) {
    why = error.kind() == ErrorKind::kComm ? error.what() : fmt::format("kind: {}", error.what());
  }
  say(says, fmt::format("{} {}", steady_seconds(), why));
}

// --- rounds -----------------------------------------------------------------------------------

struct Rank {
  int round, rank;
  Process process;
};

/// Waits for all; `ended` is called for each as soon as it has ended.
void wait_for_all(std::vector<Rank>& ranks, double patience_s,
                  const std::function<void(const Rank&)>& ended) {
  const Stopwatch watch;
  size_t open = ranks.size();
  while (open > 0 && watch.seconds() < patience_s) {
    std::vector<pollfd> polled;
    for (const Rank& one : ranks)
      polled.push_back({.fd = one.process.says.get(), .events = POLLIN, .revents = 0});
    poll(polled.data(), polled.size(), 1000);
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (polled[i].fd < 0 || polled[i].revents == 0) continue;
      Process& process = ranks[i].process;
      std::array<char, 4096> some{};
      const ssize_t got = read(process.says.get(), some.data(), some.size());
      if (got > 0) process.said.append(some.data(), static_cast<size_t>(got));
      if (got > 0) continue;
      process.says = FileDescriptor();
      waitpid(process.id, &process.status, 0);
      ended(ranks[i]);
      --open;
    }
  }
  for (Rank& one : ranks) {  // some may hang
    if (one.process.says.get() < 0) continue;
    kill(one.process.id, SIGKILL);
    waitpid(one.process.id, &one.process.status, 0);
  }
}

/// Plays rounds at the same time. In every other one, the store announces the death.
std::vector<Rank> play_rounds(int first, int last, const CommOptions& options) {
  StoreProcess store;
  std::vector<Rank> ranks;
  for (int round = first; round < last; ++round) {
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto body = [&](int says) {
        close(store.reports());
        live(round, rank, store.port, options, says);
      };
      ranks.push_back({round, rank, forked(body)});
    }
  }
  wait_for_all(ranks, patience_s(options), [&](const Rank& one) {
    if (one.rank == Death(one.round).rank && one.round % 2 == 0)
      store.post_death(one.round, one.rank);
  });
  return ranks;
}

/// Options with a timeout in which as many ranks live their whole lives, as long as nobody dies: so
/// no wait of a healthy rank is longer, however slow this machine is.
CommOptions measured_options() {
  const Stopwatch watch;
  for (const Rank& one : play_rounds(-kAtOnce, 0, kPatientOptions))
    EXPECT_THAT(one.process.said, ::testing::EndsWith(" no error"));
  CommOptions options = kPatientOptions;
  options.timeout_s = std::max(3., watch.seconds());
  return options;
}

/// The seconds that a process said first, and the rest.
std::pair<double, std::string> parts(const std::string& said) {
  const size_t space = said.find(' ');
  if (space == std::string::npos) return {0, said};
  return {std::stod(said.substr(0, space)), said.substr(space + 1)};
}

TEST(NcclKilled, a_rank_that_is_killed_at_any_moment_is_named_by_all_others_in_a_hundred_rounds) {
  ASSERT_EQ(threads_of_this_process(), 1);
  const CommOptions options = measured_options();
  const double allowed_s = 1.3 * options.timeout_s + kLate_s;
  int survivors = 0;
  for (int first = 0; first < kRounds; first += kAtOnce) {
    const std::vector<Rank> ranks = play_rounds(first, std::min(first + kAtOnce, kRounds), options);
    for (const Rank& one : ranks) {
      const Death death(one.round);
      const std::string of =
          fmt::format("round {} (rank {} dies beside exchange {}), rank {}: {}", one.round,
                      death.rank, death.exchange, one.rank, one.process.said);
      const auto [ended_s, said] = parts(one.process.said);
      if (one.rank == death.rank) {
        EXPECT_TRUE(WIFSIGNALED(one.process.status)) << of;
        EXPECT_THAT(said, ::testing::StartsWith("killed")) << of;
        continue;
      }
      ++survivors;
      EXPECT_EQ(one.process.status, 0) << of;
      const char* const how = one.round % 2 == 0
                                  ? "(was killed by signal 9 .SIGKILL.|is silent since )"
                                  : "is silent since ";
      EXPECT_THAT(said, ::testing::ContainsRegex(fmt::format("rank {} {}", death.rank, how))) << of;
      const size_t dead = static_cast<size_t>((one.round - first) * kRanks + death.rank);
      EXPECT_LT(ended_s - parts(ranks[dead].process.said).first, allowed_s) << of;
    }
  }
  EXPECT_EQ(survivors, kRounds * (kRanks - 1));
}

}  // namespace
}  // namespace distca
