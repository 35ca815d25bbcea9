// Ranks that meet, as users start them: two runs on one address, one run after another, torchrun,
// mpirun, two machines.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "distca/base/clock.h"
#include "distca/base/file.h"
#include "distca/batch/test_folder.h"
#include "tests/run_command.h"

namespace distca::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// A command of a shell and what it printed.
struct Ran {
  int exit_code = 0;
  std::string output;
};

Ran shell(const std::string& command) {
  Ran ran;
  std::FILE* pipe = popen(("exec 2>&1; " + command).c_str(), "r");
  std::array<char, 4096> buffer;
  for (size_t got; (got = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    ran.output.append(buffer.data(), got);
  }
  const int status = pclose(pipe);
  ran.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return ran;
}

bool there_is(const std::string& program) { return shell("command -v " + program).exit_code == 0; }

/// Of a line each.
std::vector<double> losses(const fs::path& run) {
  std::vector<double> found;
  for (const Json& line : read_json_lines(run / "metrics.jsonl")) found.push_back(line.at("loss"));
  return found;
}

class MeetingTest : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    prefix_ = make_data_set(folder_);
  }

  std::vector<std::string> arguments(const std::string& run, std::vector<std::string> more = {}) {
    more.insert(more.begin(), "train.validation_every=0");
    return train_arguments(prefix_, folder_ / run, more);
  }
  std::string command(const std::string& run, const std::vector<std::string>& more = {}) {
    std::string text = DISTCA_PROGRAM;
    for (const std::string& word : arguments(run, more)) text += " " + word;
    return text;
  }

  fs::path prefix_;
};

class TwoRuns : public MeetingTest, public ::testing::WithParamInterface<int> {
 protected:
  static constexpr int kSteps = 120;

  std::vector<std::unique_ptr<Program>> start(const std::string& run, int ranks,
                                              const std::string& port, int steps = kSteps) {
    std::vector<std::unique_ptr<Program>> programs;
    for (int rank = ranks - 1; rank >= 0; --rank) {
      programs.push_back(
          std::make_unique<Program>(arguments(run, {fmt::format("train.steps={}", steps)}),
                                    torchrun_environment(rank, ranks, port)));
    }
    return programs;
  }

  /// Of a run that nobody disturbs: the same for all cases.
  std::vector<double> lone_losses(const std::string& port) {
    static const std::vector<double> kLosses = [&] {
      for (auto& program : start("alone", 2, port)) {
        const Outcome outcome = program->wait();
        EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
      }
      return losses(folder_ / "alone");
    }();
    return kLosses;
  }
};

TEST_P(TwoRuns, the_second_on_one_address_is_refused_and_the_first_ends_as_if_alone) {
  const std::string port = free_port();
  auto first = start("first", 2, port);
  const Stopwatch watch;
  while (losses(folder_ / "first").empty()) {
    ASSERT_LT(watch.seconds(), 60) << "no first step";
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const int ranks = 2 + GetParam() % 2;  // as many, or one more
  auto second = start("second", ranks, port);
  for (int i = 0; i < ranks; ++i) {
    const Outcome outcome = second[i]->wait();
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_THAT(outcome.err,
                StartsWith(i + 1 == ranks
                               ? fmt::format("distca: error: port {} cannot be used: ", port)
                               : fmt::format("distca: error: localhost:{} belongs to another run: ",
                                             port)));
    EXPECT_EQ(outcome.err.find('\n'), outcome.err.size() - 1) << outcome.err;
  }
  EXPECT_LT(losses(folder_ / "first").size(), static_cast<size_t>(kSteps)) << "it was over already";
  for (auto& program : first) {
    const Outcome outcome = program->wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  }
  EXPECT_FALSE(fs::exists(folder_ / "second"));

  EXPECT_EQ(losses(folder_ / "first").size(), static_cast<size_t>(kSteps));
  for (auto& program : start("next", 2, port, 1)) {  // the same port again, at once
    const Outcome outcome = program->wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  }
  EXPECT_EQ(losses(folder_ / "first"), lone_losses(port));
}

INSTANTIATE_TEST_SUITE_P(three, TwoRuns, ::testing::Range(0, 3));
INSTANTIATE_TEST_SUITE_P(full, TwoRuns, ::testing::Range(0, 50));

TEST_F(MeetingTest, an_interface_that_is_not_there_is_refused_at_once) {
  std::vector<std::string> words = arguments("run");
  words.insert(words.end(), {"--workers", "2"});
  Program program(words, {{"GLOO_SOCKET_IFNAME", "eth99"}});
  const Outcome outcome = program.wait();
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, StartsWith("distca: error: GLOO_SOCKET_IFNAME=eth99: no such interface; "
                                      "there are "));
  EXPECT_EQ(outcome.err.find('\n'), outcome.err.size() - 1) << outcome.err;
}

TEST_F(MeetingTest, torchrun_starts_ranks_and_starts_them_again_after_a_failure) {
  const std::string torchrun = fs::exists(".venv/bin/torchrun") ? ".venv/bin/torchrun" : "torchrun";
  if (!there_is(torchrun)) GTEST_SKIP() << "there is no torchrun";
  // Rank 1 fails once: the ranks of the second attempt meet in the same store.
  const fs::path script = folder_ / "rank.sh";
  write_file_atomically(script, "[ $TORCHELASTIC_RESTART_COUNT-$RANK = 0-1 ] && exit 3\nexec " +
                                    command("run") + "\n");
  const Ran ran =
      shell(torchrun + " --no-python --nproc-per-node 2 --max-restarts 1 sh " + script.string());
  EXPECT_EQ(ran.exit_code, 0) << ran.output;
  EXPECT_EQ(losses(folder_ / "run").size(), 6u) << ran.output;
}

TEST_F(MeetingTest, mpirun_starts_ranks) {
  if (!there_is("mpirun")) GTEST_SKIP() << "there is no mpirun: apt-get install openmpi-bin";
  const Ran ran = shell(
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe -n 2 " +
      command("run"));
  EXPECT_EQ(ran.exit_code, 0) << ran.output;
  EXPECT_EQ(losses(folder_ / "run").size(), 6u) << ran.output;
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

  /// What is in the way; empty if nothing.
  std::string make(const std::string& hosts_0, const std::string& hosts_1) {
    if (geteuid() != 0) return "needs root to make network namespaces";
    if (!there_is("ip")) return "there is no ip: apt-get install iproute2";
    std::string commands = "set -e\n";
    for (int end : {0, 1}) commands += "ip netns add " + name(end) + "\n";
    commands +=
        fmt::format("ip -n {} link add wire type veth peer name wire netns {}\n", name(0), name(1));
    for (int end : {0, 1}) {
      commands += fmt::format(
          "ip -n {0} addr add 192.168.77.{1}/24 dev wire\nip -n {0} link set lo up\n"
          "ip -n {0} link set wire up\n",
          name(end), end + 1);
    }
    const Ran ran = shell(commands);
    if (ran.exit_code != 0) return "no network namespaces here: " + ran.output;
    write_file_atomically("/etc/netns/" + name(0) + "/hosts", "127.0.0.1 localhost\n" + hosts_0);
    write_file_atomically("/etc/netns/" + name(1) + "/hosts", "127.0.0.1 localhost\n" + hosts_1);
    return "";
  }

  /// Rank R on machine R.
  Ran train(const std::string& environment, double startup_timeout_s) {
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
  const Ran ran = train("", 60);
  EXPECT_THAT(ran.output, HasSubstr("rank 0: exit 0"));
  EXPECT_THAT(ran.output, HasSubstr("rank 1: exit 0"));
  EXPECT_EQ(losses(folder_ / "run").size(), 6u) << ran.output;
}

TEST_F(TwoMachines, hear_in_one_line_why_an_interface_leads_nowhere) {
  const std::string reason = make("192.168.77.1 nodea\n", "192.168.77.1 nodea\n");
  if (!reason.empty()) GTEST_SKIP() << reason;
  const Ran ran = train("GLOO_SOCKET_IFNAME=lo", 8);
  EXPECT_THAT(ran.output, HasSubstr("rank 0: exit 1"));
  EXPECT_THAT(ran.output, HasSubstr("rank 1: exit 1"));
  EXPECT_THAT(ran.output, HasSubstr("cannot connect through lo: "));
  EXPECT_THAT(ran.output, HasSubstr("onnection refused"));
  EXPECT_EQ(std::ranges::count(ran.output, '\n'), 4) << ran.output;  // two errors, two exit codes
}

}  // namespace
}  // namespace distca::testing
