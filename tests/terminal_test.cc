// A training whose output is read slowly, for a while or not at all, and one that is stopped: the
// real program with pipes, terminals and signals.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <regex>
#include <sstream>

#include "distca/base/test_terminal.h"
#include "tests/run_command.h"
#include "tests/training_testing.h"

namespace distca::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

/// Signals that a program started meanwhile ignores, as under nohup or after `&` in a script.
class Ignored {
 public:
  explicit Ignored(std::vector<int> signals) : signals_(std::move(signals)) {
    for (const int signal : signals_) std::signal(signal, SIG_IGN);
  }
  ~Ignored() {
    for (const int signal : signals_) std::signal(signal, SIG_DFL);
  }

 private:
  const std::vector<int> signals_;
};

/// The ways to run ranks on one machine.
struct Ranks {
  const char* name;
  Words words;
};

std::string name_of(const ::testing::TestParamInfo<Ranks>& info) { return info.param.name; }

const Ranks kOne{"one_worker", {}};
const Ranks kLaunched{"launcher", {"--workers", "2"}};
const Ranks kThreads{"threads", {"--workers", "2", "comm.backend=threads"}};

class TerminalTest : public TrainingTest {
 protected:
  Words arguments(int64_t steps, const Words& more) const {
    return TrainingTest::arguments(
        joined(more, {fmt::format("train.steps={}", steps), "comm.grace_s=2"}));
  }
  void start(int64_t steps, const Words& words, const Streams& streams = {},
             const Environment& environment = {}) {
    program_.emplace(arguments(steps, words), environment, streams);
  }
  size_t steps_done() const { return metrics().size(); }
  void wait_for_steps(size_t steps) {
    ASSERT_TRUE(wait_until([&] { return steps_done() >= steps; }, kPatience, 0.005))
        << "no step " << steps;
  }
  /// Once, a line says after which step the run stopped; as many are in metrics.jsonl, and the
  /// state after it is saved.
  void expect_stopped(const std::string& line, const std::string& signal) {
    const std::regex said(
        "distca: stopped by " + signal + " after step ([0-9]+) of 1000000; saved, " +
        "resume with the same command and --resume \\(" + run_.string() + "/checkpoints\\)\n");
    std::smatch match;
    ASSERT_TRUE(std::regex_match(line, match, said)) << line;
    EXPECT_EQ(steps_done(), std::stoull(match[1]));
    std::vector<std::string> outside = files_below(run_);
    std::erase_if(outside,
                  [](const std::string& file) { return file.starts_with("checkpoints/"); });
    EXPECT_THAT(outside, ElementsAre("config.toml", "metrics.jsonl"));
    EXPECT_TRUE(fs::exists(run_ / "checkpoints" / fmt::format("step_{:06}", std::stoll(match[1])) /
                           "checkpoint.json"));
  }

  /// A run that nobody stops ends well, with its weights.
  Outcome expect_whole(size_t steps) {
    Outcome outcome = program_->wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(steps_done(), steps);
    EXPECT_TRUE(fs::exists(run_ / "model.safetensors"));
    return outcome;
  }
  /// The run ends soon, and with exit code 0, but after Ctrl-C with 130, as shells expect.
  void expect_interrupted(const std::string& signal) {
    const Outcome outcome = program_->wait();  // soon: nobody kills it for not ending
    EXPECT_EQ(outcome.exit_code, signal == "SIGINT" ? 130 : 0);
    EXPECT_EQ(program_->processes().size(), 0u);
    expect_stopped(outcome.err, signal);
  }
};

class RanksTest : public TerminalTest, public ::testing::WithParamInterface<Ranks> {};

TEST_P(RanksTest, what_was_ignored_when_it_began_stays_ignored) {
  {
    const Ignored ignored({SIGHUP, SIGINT});
    start(40, GetParam().words);
  }
  ASSERT_NO_FATAL_FAILURE(wait_for_steps(3));
  for (const int signal : {SIGHUP, SIGINT}) {
    kill(program_->pid(), signal);
    program_->signal_group(signal);
  }
  EXPECT_THAT(expect_whole(40).err, IsEmpty());
}

TEST_P(RanksTest, stopped_it_says_at_which_step_and_what_is_saved) {
  start(1'000'000, GetParam().words);
  ASSERT_NO_FATAL_FAILURE(wait_for_steps(3));
  program_->signal_group(SIGINT);  // a terminal does so at Ctrl-C
  expect_interrupted("SIGINT");
}

INSTANTIATE_TEST_SUITE_P(, RanksTest, ::testing::Values(kOne, kLaunched, kThreads), name_of);

TEST_F(TerminalTest, a_signal_to_the_launcher_alone_says_the_same) {
  start(1'000'000, kLaunched.words);
  ASSERT_NO_FATAL_FAILURE(wait_for_steps(3));
  kill(program_->pid(), SIGTERM);
  expect_interrupted("SIGTERM");
}

TEST_F(TerminalTest, under_another_launcher_rank_0_says_where_it_was_stopped) {
  const std::string port = free_port();
  start(1'000'000, {}, {}, torchrun_environment(0, 2, port));
  Program second(arguments(1'000'000, {}), torchrun_environment(1, 2, port));
  ASSERT_NO_FATAL_FAILURE(wait_for_steps(3));
  second.signal_group(SIGTERM);
  program_->signal_group(SIGTERM);
  const Outcome other = second.wait();
  EXPECT_EQ(other.exit_code, 0);
  EXPECT_THAT(other.err, IsEmpty());
  const Outcome outcome = program_->wait();
  EXPECT_EQ(outcome.exit_code, 0);
  expect_stopped(outcome.err, "SIGTERM");
}

class FullDiskTest : public TerminalTest, public ::testing::WithParamInterface<Ranks> {};

TEST_P(FullDiskTest, for_what_is_printed_costs_a_warning) {
  const FileDescriptor full(open("/dev/full", O_WRONLY | O_CLOEXEC));
  start(2, GetParam().words, {.out = full.get()});
  EXPECT_EQ(expect_whole(2).err,
            "distca: warning: stdout: No space left on device: part of what was to be "
            "printed is lost\n");
}

INSTANTIATE_TEST_SUITE_P(, FullDiskTest, ::testing::Values(kOne, kLaunched, kThreads), name_of);

class ReaderTest : public TerminalTest, public ::testing::WithParamInterface<Ranks> {};

TEST_P(ReaderTest, that_goes_away_after_two_lines_costs_nothing) {
  Pipe pipe;
  start(20, GetParam().words, {.out = pipe.in.get(), .err = Streams::kClosed});
  pipe.in = FileDescriptor();
  for (int lines = 0; lines < 2;) {
    char byte = 0;
    ASSERT_EQ(read(pipe.out.get(), &byte, 1), 1);
    lines += byte == '\n' ? 1 : 0;
  }
  pipe.out = FileDescriptor();
  expect_whole(20);
}

TEST_P(ReaderTest, that_never_reads_its_pipe_costs_a_few_seconds_at_the_end) {
  const Pipe pipe;
  const int bytes = fcntl(pipe.in.get(), F_SETPIPE_SZ, 4096);
  const std::string full(static_cast<size_t>(bytes), '-');
  ASSERT_EQ(write(pipe.in.get(), full.data(), full.size()), bytes);
  start(20, GetParam().words, {.out = pipe.in.get(), .err = pipe.in.get()});
  expect_whole(20);
}

TEST_P(ReaderTest, on_a_paused_terminal_it_trains_to_the_end) {
  TestTerminal terminal;
  start(60, GetParam().words, {.out = terminal.fd(), .err = terminal.fd()});
  ASSERT_NO_FATAL_FAILURE(wait_for_steps(2));
  terminal.pause();
  expect_whole(60);
}

INSTANTIATE_TEST_SUITE_P(, ReaderTest, ::testing::Values(kOne, kLaunched, kThreads), name_of);

TEST_F(TerminalTest, an_error_begins_on_a_line_of_its_own) {
  for (const int rank : {0, 1}) {
    TestTerminal terminal;
    start(1'000'000, {"--workers", "2", "train.overwrite=true", "train.validation_every=0"},
          {.out = terminal.fd(), .err = terminal.fd()});
    ASSERT_NO_FATAL_FAILURE(wait_for_steps(10));
    kill(program_->pid_of_rank(rank), SIGKILL);
    EXPECT_EQ(program_->wait().exit_code, 1);
    const std::vector<std::string> screen = terminal.screen();
    ASSERT_GE(screen.size(), 2u);
    EXPECT_THAT(screen.back(), IsEmpty());
    EXPECT_THAT(screen[screen.size() - 2],
                StartsWith(fmt::format("distca: error: rank {} was killed by signal 9", rank)));
    // Rank 0 has kept the last line about a step.
    if (rank == 1) {
      EXPECT_THAT(screen[screen.size() - 3], StartsWith("step "));
    }
    fs::remove_all(run_);
  }
}

/// The fields that fit 80 columns, then those that 100 and 200 columns show as well.
const std::string kFirstFields =
    "step +[0-9]/6  loss [0-9.]+  max/mean [0-9.]+>[0-9.]+  [0-9,k]+ tok/s  ~?[0-9:]+ left";
const std::string kNextFields = "  lr [0-9.e-]+  norm [0-9.]+";
const std::string kLastFields = "  [0-9]+ % peak  memory [0-9.]+ [KM]iB";

class WidthTest : public TerminalTest, public ::testing::WithParamInterface<unsigned short> {};

TEST_P(WidthTest, shows_whole_lines_and_keeps_measured_losses) {
  TestTerminal terminal(GetParam());
  start(6, {"--workers", "2"}, {.out = terminal.fd(), .err = terminal.fd()});
  EXPECT_EQ(program_->wait().exit_code, 0);
  const std::vector<std::string> screen = terminal.screen();
  std::vector<std::string> steps;
  for (const std::string& line : screen) {
    if (line.find(run_) == std::string::npos) {
      EXPECT_LE(line.size(), 100u + (GetParam() > 100 ? 100u : 0u)) << line;
    }
    if (line.starts_with("step ")) steps.push_back(line);
  }
  const std::string fields =
      kFirstFields + (GetParam() > 80 ? kNextFields : "") + (GetParam() > 100 ? kLastFields : "");
  const std::string more = GetParam() > 100 ? "" : "(  .*)?";
  const std::string validation = "step ./6  validation loss [0-9.]+";
  EXPECT_THAT(steps, ElementsAre(MatchesRegex(validation), MatchesRegex(validation),
                                 MatchesRegex(fields + more)));
  for (const std::string& step : steps) EXPECT_LT(step.size(), GetParam());
  EXPECT_THAT(screen, Contains(HasSubstr("Saved")));
}

INSTANTIATE_TEST_SUITE_P(, WidthTest, ::testing::Values(80, 100, 200),
                         [](const auto& info) { return fmt::format("{}", info.param); });

TEST_F(TerminalTest, a_pipe_has_every_field_of_its_lines) {
  start(6, {"--workers", "2"});
  const Outcome outcome = program_->wait();
  EXPECT_EQ(outcome.exit_code, 0);
  std::vector<std::string> steps;
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("step ") && !line.ends_with(" is under way")) steps.push_back(line);
  }
  // A line with the fields comes every few seconds, and in addition to each validation loss.
  EXPECT_GE(steps.size(), 4u);
  EXPECT_THAT(steps, Contains(MatchesRegex("step ./6  validation loss [0-9.]+")).Times(2));
  for (const std::string& step : steps) {
    EXPECT_THAT(step, MatchesRegex("(" + kFirstFields + kNextFields + kLastFields +
                                   "|step ./6  validation loss [0-9.]+)"));
  }
}

TEST_F(TerminalTest, a_reader_of_a_short_command_that_goes_away_ends_it_in_silence) {
  Pipe pipe;
  pipe.out = FileDescriptor();
  std::signal(SIGPIPE, SIG_DFL);  // whatever who started us made of it
  Program plan({"plan", "data.prefix=" + prefix_.string(), "--workers", "2"}, {},
               {.out = pipe.in.get()});
  pipe.in = FileDescriptor();
  const Outcome outcome = plan.wait();
  EXPECT_EQ(outcome.exit_code, 128 + SIGPIPE);
  EXPECT_THAT(outcome.err, IsEmpty());
}

}  // namespace
}  // namespace distca::testing
