// Ranks that meet, as users start them: two runs on one address, one run after another, torchrun,
// mpirun, two machines.

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <memory>

#include "distca/base/file.h"
#include "tests/run_command.h"
#include "tests/training_testing.h"

namespace distca::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// Runs in the project's folder; `out` has all that was printed.
Outcome shell(const std::string& command) {
  return Program(ShellLine{"exec 2>&1; " + command, fs::current_path()}).wait();
}

bool there_is(const std::string& program) { return shell("command -v " + program).exit_code == 0; }

class MeetingTest : public TrainingTest {
 protected:
  Words arguments(const std::string& run, const Words& more = {}) const {
    return TrainingTest::arguments(joined({"train.validation_every=0"}, more), run);
  }
  std::string command(const std::string& run, const Words& more = {}) const {
    return fmt::format("distca {}", fmt::join(arguments(run, more), " "));
  }
  std::vector<double> losses(const std::string& run) const {
    std::vector<double> found;
    for (const Json& line : metrics(run)) found.push_back(line.at("loss"));
    return found;
  }
};

class TwoRuns : public MeetingTest, public ::testing::WithParamInterface<int> {
 protected:
  static constexpr size_t kSteps = 60;  // steps whose losses are compared

  using Programs = std::vector<std::unique_ptr<Program>>;

  /// Starts the ranks of a run, which does not end by itself if `steps` is not given.
  Programs start(const std::string& run, int ranks, const std::string& port,
                 int steps = 1'000'000) {
    Programs programs;
    for (int rank = ranks - 1; rank >= 0; --rank) {
      programs.push_back(
          std::make_unique<Program>(arguments(run, {fmt::format("train.steps={}", steps)}),
                                    torchrun_environment(rank, ranks, port)));
    }
    return programs;
  }
  static void expect_success(const Programs& programs) {
    for (const auto& program : programs) {
      const Outcome outcome = program->wait();
      EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    }
  }

  /// Stops a run after the steps that are compared; gives their losses.
  std::vector<double> first_losses(const Programs& programs, const std::string& run) {
    EXPECT_TRUE(wait_until([&] { return losses(run).size() >= kSteps; })) << run;
    for (const auto& program : programs) kill(program->pid(), SIGTERM);
    expect_success(programs);
    std::vector<double> found = losses(run);
    found.resize(kSteps);
    return found;
  }
  /// The losses of a run that nobody disturbs. They are the same for all cases.
  std::vector<double> lone_losses(const std::string& port) {
    static const std::vector<double> kLosses = first_losses(start("alone", 2, port), "alone");
    return kLosses;
  }
};

TEST_P(TwoRuns, the_second_on_one_address_is_refused_and_the_first_goes_on_as_if_alone) {
  const std::string port = free_port();
  const Programs first = start("first", 2, port);
  ASSERT_TRUE(wait_until([&] { return !losses("first").empty(); })) << "no first step";
  const int ranks = 2 + GetParam() % 2;  // the first run's 2, or one more
  const Programs second = start("second", ranks, port);
  for (int i = 0; i < ranks; ++i) {
    EXPECT_THAT(error_line(second[i]->wait(), 2),
                StartsWith(i + 1 == ranks ? "port " + port + " cannot be used: "
                                          : "localhost:" + port + " belongs to another run: "));
  }
  EXPECT_FALSE(fs::exists(folder_ / "second"));
  const std::vector<double> found = first_losses(first, "first");
  expect_success(start("next", 2, port, 1));  // a run can use the port again at once
  EXPECT_EQ(found, lone_losses(port));
}

INSTANTIATE_TEST_SUITE_P(three, TwoRuns, ::testing::Range(0, 3));
INSTANTIATE_TEST_SUITE_P(full, TwoRuns, ::testing::Range(0, 50));

TEST_F(MeetingTest, an_interface_that_is_not_there_is_refused_at_once) {
  Program program(arguments("run", {"--workers", "2"}), {{"GLOO_SOCKET_IFNAME", "eth99"}});
  EXPECT_THAT(error_line(program.wait(), 2),
              StartsWith("GLOO_SOCKET_IFNAME=eth99: no such interface; there are "));
}

TEST_F(MeetingTest, torchrun_starts_ranks_and_starts_them_again_after_a_failure) {
  const std::string torchrun = fs::exists(".venv/bin/torchrun") ? ".venv/bin/torchrun" : "torchrun";
  if (!there_is(torchrun)) GTEST_SKIP() << "there is no torchrun";
  // Rank 1 fails once: the ranks of the second attempt meet in the same store.
  const fs::path script = folder_ / "rank.sh";
  write_file_atomically(script, "[ $TORCHELASTIC_RESTART_COUNT-$RANK = 0-1 ] && exit 3\nexec " +
                                    command("run") + "\n");
  const Outcome ran =
      shell(torchrun + " --no-python --nproc-per-node 2 --max-restarts 1 sh " + script.string());
  EXPECT_EQ(ran.exit_code, 0) << ran.out;
  EXPECT_EQ(losses("run").size(), 6u) << ran.out;
}

TEST_F(MeetingTest, mpirun_starts_ranks) {
  if (!there_is("mpirun")) GTEST_SKIP() << "there is no mpirun: apt-get install openmpi-bin";
  const Outcome ran = shell(
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe -n 2 " +
      command("run"));
  EXPECT_EQ(ran.exit_code, 0) << ran.out;
  EXPECT_EQ(losses("run").size(), 6u) << ran.out;
}

/// Two network namespaces, joined by a wire, each with a hosts file of its own.
class TwoMachines : public MeetingTest {
 protected:
  std::string name(int end) { return fmt::format("distca-meet-{}-{}", getpid(), end); }

  void TearDown() override {
    for (int end : {0, 1}) {
      shell("ip netns del " + name(end));
      fs::remove_all("/etc/netns/" + name(end));
    }
    MeetingTest::TearDown();
  }

  /// Makes the two machines with these lines in their hosts files. Returns the reason why that is
  /// not possible. An empty one means that they are made.
  std::string make(const std::string& hosts_0, const std::string& hosts_1) {
    if (geteuid() != 0) return "needs root to make network namespaces";
    if (!there_is("ip")) return "there is no ip: apt-get install iproute2";
    const Outcome ran = shell(fmt::format(
        "set -e; ip netns add {0}; ip netns add {1}\n"
        "ip -n {0} link add wire type veth peer name wire netns {1}\n"
        "ip -n {0} addr add 192.168.77.1/24 dev wire\nip -n {1} addr add 192.168.77.2/24 dev wire\n"
        "for end in {0} {1}; do ip -n $end link set lo up; ip -n $end link set wire up; done",
        name(0), name(1)));
    if (ran.exit_code != 0) return "no network namespaces here: " + ran.out;
    for (int end : {0, 1}) {
      write_file_atomically("/etc/netns/" + name(end) + "/hosts",
                            "127.0.0.1 localhost\n" + (end == 0 ? hosts_0 : hosts_1));
    }
    return "";
  }

  /// Rank R on machine R.
  Outcome train(const std::string& environment, double startup_timeout_s) {
    std::string commands;
    for (int rank : {0, 1}) {
      commands += fmt::format(
          "(ip netns exec {} env RANK={} LOCAL_RANK=0 WORLD_SIZE=2 MASTER_ADDR=nodea "
          "MASTER_PORT=29400 RES_OPTIONS='timeout:1 attempts:1' {} {} >{}; echo \"rank {}: exit "
          "$?\") & ",
          name(rank), rank, environment,
          command("run", {fmt::format("comm.startup_timeout_s={}", startup_timeout_s)}),
          (folder_ / "progress").string(), rank);
    }
    return shell(commands + "wait");
  }
};

TEST_F(TwoMachines, with_debians_hosts_file_meet_by_themselves) {
  const std::string reason = make("127.0.1.1 nodea\n", "192.168.77.1 nodea\n");
  if (!reason.empty()) GTEST_SKIP() << reason;
  const std::string printed = train("", 60).out;
  EXPECT_THAT(printed, AllOf(HasSubstr("rank 0: exit 0"), HasSubstr("rank 1: exit 0")));
  EXPECT_EQ(losses("run").size(), 6u) << printed;
}

TEST_F(TwoMachines, hear_in_one_line_why_an_interface_leads_nowhere) {
  const std::string reason = make("192.168.77.1 nodea\n", "192.168.77.1 nodea\n");
  if (!reason.empty()) GTEST_SKIP() << reason;
  // Both ranks have come before the first gives up, which takes longer on a slow machine.
  std::string printed;
  for (double startup_s = 8; startup_s < kPatience; startup_s *= 3) {
    printed = train("GLOO_SOCKET_IFNAME=lo", startup_s).out;
    if (printed.find("never came") == std::string::npos) break;
  }
  EXPECT_THAT(printed,
              AllOf(HasSubstr("rank 0: exit 1"), HasSubstr("rank 1: exit 1"),
                    HasSubstr("cannot connect through lo: "), HasSubstr("onnection refused")));
  EXPECT_EQ(std::ranges::count(printed, '\n'), 4) << printed;  // two errors, two exit codes
}

}  // namespace
}  // namespace distca::testing
