// Runs that somebody asks to stop, by any signal and to whomever it goes, runs under torchrun, and
// runs whose disk is full for a while: they save, say so, and go on bit for bit.

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <fstream>
#include <regex>
#include <sstream>
#include <thread>

#include "distca/base/file.h"
#include "distca/batch/indexed_dataset.h"
#include "tests/checkpoint_runs.h"
#include "tests/small_disk.h"

namespace distca::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kStopSteps = 24;
/// Steps of some 0.1 s: a signal takes effect in the step that it comes in.
const Words kSlow = {fmt::format("train.steps={}", kStopSteps),
                     "batch.nano_batch_tokens=4096",
                     "train.validation_every=0",
                     "comm.grace_s=1",
                     "--workers",
                     "2"};

struct Stop {
  const char* name;
  int signal;
  enum class To { kLauncher, kGroup, kRank } to = To::kLauncher;
  Words words = {};
};
std::string stop_name(const ::testing::TestParamInfo<Stop>& info) { return info.param.name; }

class StopTest : public CheckpointTest {
 protected:
  /// The results of a run that nobody stops. They have the same bits for all cases.
  Training straight() const {
    static const Training kStraight = train("straight", kSlow);
    return kStraight;
  }
  /// Returns true if SIGTERM is in this set of a process's signals: "SigCgt" are those that it has
  /// a handler for, "ShdPnd" those that wait for it.
  static bool sigterm_is_in(const std::string& set, pid_t pid) {
    std::ifstream status(fmt::format("/proc/{}/status", pid));
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with(set + ":"))
        return (std::stoull(line.substr(set.size() + 1), nullptr, 16) >> (SIGTERM - 1) & 1) != 0;
    }
    return false;
  }
  /// Returns true once a SIGSTOP has reached all threads. Until then, one may take a later signal
  /// first.
  static bool is_stopped(pid_t pid) {
    for (const auto& thread : fs::directory_iterator(fmt::format("/proc/{}/task", pid))) {
      std::ifstream status(thread.path() / "stat");
      std::string text;
      std::getline(status, text);
      if (!text.substr(text.rfind(')') + 1).starts_with(" T")) return false;
    }
    return true;
  }
  /// The processor time that a process has used so far.
  static double processor_seconds(pid_t pid) {
    std::ifstream status(fmt::format("/proc/{}/stat", pid));
    std::string text;
    std::getline(status, text);
    std::istringstream fields(text.substr(text.rfind(')') + 1));  // the name may hold anything
    std::string skipped;
    for (int field = 3; field < 14; ++field) fields >> skipped;
    double user = 0, system = 0;
    fields >> user >> system;
    return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
  }
  /// The step after which a run that got a signal says that it stopped, once, and saved.
  int64_t step_of(const std::string& line, const std::string& signal) const {
    const std::regex said(
        fmt::format("distca: stopped by {} after step ([0-9]+) of {}; saved, resume with the same "
                    "command and --resume \\({}/checkpoints\\)\n",
                    signal, kStopSteps, run_.string()));
    std::smatch match;
    EXPECT_TRUE(std::regex_match(line, match, said)) << line;
    return match.empty() ? -1 : std::stoll(match[1]);
  }
  /// A run that was stopped when it had this many lines has saved within `later` steps; resumed, it
  /// ends as if nobody had. A line may be written a moment after its step.
  void expect_saved(int64_t step, size_t lines, const Words& words, int64_t later = 2) const {
    EXPECT_GE(step, static_cast<int64_t>(lines));
    EXPECT_LE(step, static_cast<int64_t>(lines) + later);
    EXPECT_EQ(metrics().size(), static_cast<size_t>(step));
    EXPECT_THAT(saved(), ElementsAre(step));
    EXPECT_THAT(unfinished(), IsEmpty());
    EXPECT_FALSE(fs::exists(run_ / "model.safetensors"));
    EXPECT_THAT(resume(words).out, HasSubstr("\nit goes on bit for bit\n"));
    expect_same_bits(read_training("run"), straight());
  }
};

class SignalTest : public StopTest, public ::testing::WithParamInterface<Stop> {};

TEST_P(SignalTest, saves_after_the_step_and_the_run_goes_on_bit_for_bit) {
  const Stop& stop = GetParam();
  const Words words = joined(kSlow, stop.words);
  program_.emplace(arguments(words));
  ASSERT_TRUE(wait_for_steps(3));
  const pid_t rank = stop.to == Stop::To::kRank ? program_->pid_of_rank(1) : program_->pid();
  program_->signal_group(SIGSTOP);  // so that no step passes unseen
  const size_t lines = metrics().size();
  if (stop.to == Stop::To::kGroup) {
    program_->signal_group(stop.signal);
  } else {
    kill(rank, stop.signal);
  }
  program_->signal_group(SIGCONT);
  const Outcome outcome = program_->wait();
  EXPECT_EQ(outcome.exit_code, stop.signal == SIGINT ? 130 : 0) << outcome.err;
  EXPECT_THAT(program_->processes(), IsEmpty());
  expect_saved(step_of(outcome.err, fmt::format("SIG{}", sigabbrev_np(stop.signal))), lines, words);
}

INSTANTIATE_TEST_SUITE_P(, SignalTest,
                         ::testing::Values(Stop{"term_to_the_launcher", SIGTERM},
                                           Stop{"ctrl_c", SIGINT, Stop::To::kGroup},
                                           Stop{"term_to_one_rank", SIGTERM, Stop::To::kRank},
                                           Stop{
                                               "term_to_threads",
                                               SIGTERM,
                                               Stop::To::kLauncher,
                                               {"comm.backend=threads", "checkpoint.async=false"}}),
                         stop_name);

// The other signals; what they have in common is in distca/base/stop_signals_test.cc.
INSTANTIATE_TEST_SUITE_P(full, SignalTest,
                         ::testing::Values(Stop{"usr1_to_the_launcher", SIGUSR1},
                                           Stop{"hup_to_all", SIGHUP, Stop::To::kGroup},
                                           Stop{"int_to_the_launcher", SIGINT}),
                         stop_name);

TEST_F(StopTest, asked_to_stop_twice_it_ends_at_once) {
  // A step of many seconds, in which the first signal is not heard.
  program_.emplace(arguments({"train.steps=1000", "batch.nano_batch_tokens=65536",
                              "batch.max_document_tokens=65536", "model.num_hidden_layers=8",
                              "train.validation_every=0", "attention.kernel=reference"}));
  ASSERT_TRUE(wait_until([&] { return fs::exists(run_ / "config.toml"); }));
  const double before_s = processor_seconds(program_->pid());
  ASSERT_TRUE(wait_until([&] { return processor_seconds(program_->pid()) > before_s + 3; }));
  kill(program_->pid(), SIGTERM);
  std::this_thread::sleep_for(std::chrono::seconds(3));
  kill(program_->pid(), SIGTERM);
  const Outcome outcome = program_->wait();
  EXPECT_EQ(outcome.exit_code, 130);
  EXPECT_EQ(outcome.err,
            fmt::format("distca: stopped by SIGTERM at once after step 0 of 1000; no checkpoint of "
                        "it is saved; {}/metrics.jsonl has 0 steps\n",
                        run_.string()));
  EXPECT_THAT(saved(), IsEmpty());
}

TEST_F(StopTest, a_validation_is_not_waited_for) {
  // It comes after each step and takes a minute.
  IndexedDatasetWriter writer(folder_ / "many", TokenType::kUint8);
  const std::vector<int32_t> document(256, 7);
  for (int i = 0; i < 20000; ++i) writer.add_document(document);
  writer.finish();
  const Words words = {"data.prefix=" + (folder_ / "many").string(), "batch.nano_batch_tokens=256",
                       "batch.max_document_tokens=256", "data.validation_fraction=0.9"};
  const Words two = joined(words, {"--workers", "2"});
  program_.emplace(arguments(joined(two, {"train.steps=100", "train.validation_every=1",
                                          "train.validation_nano_batches=18000"})));
  ASSERT_TRUE(wait_until([&] { return fs::exists(run_ / "config.toml"); }));
  const pid_t rank = program_->pid_of_rank(0);
  const double before_s = processor_seconds(rank);
  ASSERT_TRUE(wait_until([&] { return processor_seconds(rank) > before_s + 2; }));
  kill(program_->pid(), SIGTERM);
  const Outcome outcome = program_->wait();
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("stopped by SIGTERM after step 1 of 100; saved"));
  EXPECT_THAT(saved(), ElementsAre(1));
  ASSERT_EQ(metrics().size(), 1u);
  EXPECT_FALSE(metrics()[0].contains("validation_loss"));
  const Words rest = {"train.steps=3", "train.validation_every=0"};
  resume(joined(two, rest));
  EXPECT_EQ(read_training("run").losses, train("straight", joined(two, rest)).losses);
}

TEST_F(StopTest, before_the_first_step_there_is_nothing_to_save) {
  program_.emplace(arguments({}), torchrun_environment(0, 2, free_port()));  // nobody else comes
  ASSERT_TRUE(wait_until([&] { return sigterm_is_in("SigCgt", program_->pid()); }));
  kill(program_->pid(), SIGTERM);
  const Outcome outcome = program_->wait();
  EXPECT_EQ(outcome.exit_code, 130);
  EXPECT_EQ(outcome.err,
            "distca: stopped by SIGTERM before the first step, with nothing new to save\n");
  EXPECT_FALSE(fs::exists(run_));
}

class TorchrunTest : public StopTest {
 protected:
  /// Two ranks, each the shell commands `rank`, in which $DISTCA is the training.
  void start(const std::string& rank, const Words& words, const std::string& options = "") {
    const fs::path script = folder_ / "rank.sh";
    write_file_atomically(script, rank);
    program_.emplace(ShellLine{
        fmt::format("DISTCA='distca {}' exec {} --no-python --nproc-per-node 2 {} sh {}",
                    fmt::join(arguments(words), " "), torchrun(), options, script.string()),
        fs::current_path()});
  }
  static std::string torchrun() {
    return fs::exists(".venv/bin/torchrun") ? ".venv/bin/torchrun" : "torchrun";
  }
  static bool is_there() {
    return Program(ShellLine{"command -v " + torchrun(), fs::current_path()}).wait().exit_code == 0;
  }
  // The number of workers is torchrun's.
  const Words words_{kSlow.begin(), kSlow.end() - 2};
};

TEST_F(TorchrunTest, told_to_stop_its_ranks_save_and_end_well) {
  if (!is_there()) GTEST_SKIP() << "there is no torchrun";
  const auto file = [&](const std::string& name) { return (folder_ / name).string(); };
  start(fmt::format("trap : TERM\n$DISTCA 2>>{} & child=$!\necho $child >{}_$RANK\n"
                    // A signal ends the shell's wait, not the child.
                    "while kill -0 $child; do wait $child; code=$?; done 2>&-\n"
                    "echo rank $RANK: $code >>{}\n",
                    file("errors"), file("child"), file("codes")),
        words_);
  ASSERT_TRUE(wait_for_steps(3));
  std::array<pid_t, 2> ranks{};
  for (const int rank : {0, 1}) {
    const std::string child = file(fmt::format("child_{}", rank));
    ASSERT_TRUE(wait_until([&] { return fs::exists(child) && read_file(child).ends_with('\n'); }));
    ranks[rank] = std::stoi(read_file(child));
  }
  for (const pid_t rank : ranks) kill(rank, SIGSTOP);  // until the signal has come through torchrun
  for (const pid_t rank : ranks) ASSERT_TRUE(wait_until([&] { return is_stopped(rank); }));
  const size_t lines = metrics().size();
  kill(program_->pid(), SIGTERM);
  for (const pid_t rank : ranks)
    EXPECT_TRUE(wait_until([&] { return sigterm_is_in("ShdPnd", rank); }));
  for (const pid_t rank : ranks) kill(rank, SIGCONT);
  program_->wait();
  EXPECT_THAT(read_file(file("codes")), AllOf(HasSubstr("rank 0: 0\n"), HasSubstr("rank 1: 0\n")));
  expect_saved(step_of(read_file(file("errors")), "SIGTERM"), lines, kSlow);
}

TEST_F(TorchrunTest, restarts_a_run_that_lost_a_rank_from_its_last_checkpoint) {
  if (!is_there()) GTEST_SKIP() << "there is no torchrun";
  // However late the rank is killed, it is in the middle of the run: the number of steps is chosen
  // then, and the learning rate does not follow it.
  const Words words = joined({kSlow.begin() + 1, kSlow.end() - 2},
                             {"optimizer.decay_steps=24", "checkpoint.every_steps=4"});
  const fs::path steps = folder_ / "steps";
  start(fmt::format("if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then exec $DISTCA train.steps=$(cat "
                    "{0}); fi\n"
                    "if [ $RANK = 0 ]; then exec $DISTCA train.steps=1000000; fi\n"
                    "$DISTCA train.steps=1000000 & child=$!\n"
                    "while [ ! -e {1} ]; do sleep 0.02; done\n"
                    "kill -STOP $child; echo $(($(wc -l <{2}) + 8)) >{0}\n"
                    "kill -9 $child; wait $child\n",
                    steps.string(), checkpoint(8).string(), (run_ / "metrics.jsonl").string()),
        joined(words, {"--resume", "if-any"}), "--max-restarts 1");
  const Outcome outcome = program_->wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("\ngoing on after step "));
  const int all = std::stoi(read_file(steps));
  EXPECT_EQ(metrics().size(), static_cast<size_t>(all));
  expect_same_bits(
      read_training("run"),
      train("as_long", joined(words, {fmt::format("train.steps={}", all), "--workers", "2"})));
}

class FullDisk : public CheckpointTest {
 protected:
  /// The number at this key of the last line of metrics.jsonl. 0 means that there is none.
  int64_t last(const char* key) const { return metrics().back().value(key, int64_t{0}); }
};

TEST_F(FullDisk, costs_checkpoints_that_are_counted_until_there_is_room_again) {
  SmallDisk disk(folder_ / "run", "3m");
  if (!disk.mounted()) GTEST_SKIP() << "a disk that can be filled is mounted by root only";
  const Words words = {"--workers", "2", "train.validation_every=0", "checkpoint.every_steps=3",
                       "checkpoint.keep_last=1"};
  program_.emplace(arguments(joined(words, {"train.steps=1000000"})));
  ASSERT_TRUE(wait_for_steps(1));
  ASSERT_TRUE(wait_until([&] { return last("last_checkpoint") > 0; }));
  disk.fill(/*spare=*/100'000);  // metrics.jsonl can grow
  ASSERT_TRUE(wait_until([&] { return last("checkpoints_failed") >= 2; }));
  const int64_t before = saved().back();
  CheckpointReader(checkpoint(before)).check();
  disk.clear();
  ASSERT_TRUE(wait_until([&] { return last("last_checkpoint") > before; }));
  kill(program_->pid(), SIGTERM);
  const Outcome outcome = program_->wait();
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr(": its checkpoint is not saved: " + run_.string()),
                                 HasSubstr("No space left on device"),
                                 HasSubstr("; saved, resume with the same command")));
  const int64_t step = saved().back();
  const Outcome resumed = resume(joined(words, {fmt::format("train.steps={}", step + 3)}));
  EXPECT_THAT(resumed.out, HasSubstr(fmt::format("\ngoing on after step {} from ", step)));
  EXPECT_THAT(saved(), ElementsAre(step + 3));
  EXPECT_THAT(unfinished(), IsEmpty());
}

}  // namespace
}  // namespace distca::testing
