// A run that is killed, interrupted, cut off from its terminal or left without disk at random
// moments, in a folder that holds an older run or somebody's model: afterwards the older weights
// and their config.json are as they were or the new ones are whole, what others made is untouched,
// and every line of metrics.jsonl is whole.
//
// DISTCA_TORTURE_SEED moves the moments (1).

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <map>
#include <thread>

#include "distca/base/clock.h"
#include "distca/base/env.h"
#include "distca/base/file.h"
#include "distca/base/random.h"
#include "distca/batch/test_folder.h"
#include "tests/run_command.h"

namespace distca::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr int kSteps = 40;

enum class Blow { kKill, kKillRank, kInterrupt, kTerminate, kHangUp, kClosedPipe, kFullDisk };
struct Case {
  Blow blow;
  int moments;
};
std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  constexpr const char* kNames[] = {"kill",    "kill_rank",   "interrupt", "terminate",
                                    "hang_up", "closed_pipe", "full_disk"};
  return kNames[static_cast<int>(info.param.blow)];
}

std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> all;
  for (const std::string& name : files_below(folder)) all[name] = read_file(folder / name);
  return all;
}

/// Weights and their configuration.
std::pair<std::string, std::string> model_in(const fs::path& folder) {
  return {read_file(folder / "model.safetensors"), read_file(folder / "config.json")};
}

void expect_whole_lines(const fs::path& run) {
  const std::string text = read_file(run / "metrics.jsonl");
  EXPECT_TRUE(text.empty() || text.ends_with('\n')) << "half a line at the end";
  int64_t step = 0;
  for (const Json& line : read_json_lines(run / "metrics.jsonl")) {  // throws for half a line
    EXPECT_EQ(line.at("step"), ++step);
  }
}

/// Our end of a pipe into which the program prints; closed, the program writes to nobody.
class PipedProgram {
 public:
  explicit PipedProgram(const std::vector<std::string>& arguments) {
    std::vector<std::string> words = {DISTCA_PROGRAM};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    pid_ = fork();
    if (pid_ == 0) {
      setpgid(0, 0);
      dup2(ends[1], STDOUT_FILENO);
      dup2(ends[1], STDERR_FILENO);
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(ends[1]);
    end_ = ends[0];
  }
  ~PipedProgram() {
    hang_up();
    kill(-pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  void hang_up() {
    if (end_ >= 0) close(std::exchange(end_, -1));
  }
  bool ended() const {
    siginfo_t info = {};
    return waitid(P_PID, pid_, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid_;
  }

 private:
  pid_t pid_ = -1;
  int end_ = -1;
};

class DiskTest : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    prefix_ = make_data_set(folder_);
    run_ = folder_ / "run";
  }
  void TearDown() override {
    if (mounted_) umount2((folder_ / "disk").c_str(), MNT_DETACH);
    FolderTest::TearDown();
  }

  /// Another model than the older run's: weights and config.json of one do not go with the other's.
  std::vector<std::string> arguments(const fs::path& run, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"--workers", "2", fmt::format("train.steps={}", kSteps),
                               "train.validation_every=0", "comm.grace_s=1", "comm.timeout_s=5"});
    return train_arguments(prefix_, run, more);
  }

  void make_models() {
    const Outcome old = run_distca(train_arguments(
        prefix_, folder_ / "old", {"train.steps=2", "batch.max_document_tokens=256"}));
    ASSERT_EQ(old.exit_code, 0) << old.err;
    const Stopwatch watch;
    const Outcome fresh = run_distca(arguments(folder_ / "new"));
    ASSERT_EQ(fresh.exit_code, 0) << fresh.err;
    whole_s_ = watch.seconds();
    old_ = model_in(folder_ / "old");
    new_ = model_in(folder_ / "new");
    ASSERT_NE(old_.first, new_.first);
    ASSERT_NE(old_.second, new_.second);
  }

  /// A disk of its own for the run's folder; false: no permission to have one.
  bool mount_disk() {
    const fs::path disk = folder_ / "disk";
    fs::create_directory(disk);
    if (unshare(CLONE_NEWNS) != 0 ||
        mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=2m") != 0) {
      return false;
    }
    mounted_ = true;
    run_ = disk / "run";
    return true;
  }

  /// Takes all of the disk that is free.
  void fill_disk() const {
    const int file = open((folder_ / "disk" / "filler").c_str(), O_WRONLY | O_CREAT, 0600);
    const std::string block(4096, 'x');
    while (write(file, block.data(), block.size()) > 0) {
    }
    close(file);
  }

  /// When the run has written so many lines, and then a little later; or when it is over.
  template <typename Ended>
  void wait_for(size_t lines, double later_s, const Ended& ended) {
    const Stopwatch watch;
    const auto done = [&] {
      return lines == 0 || ended() ||
             (fs::exists(run_ / "metrics.jsonl") && lines_of_new_run() >= lines);
    };
    while (!done()) {
      ASSERT_LT(watch.seconds(), 60);
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(later_s));
  }
  /// The older one has 2; it is gone when the new one begins.
  size_t lines_of_new_run() {
    const std::string text = read_file(run_ / "metrics.jsonl");
    began_ = began_ || text != old_metrics_;
    return began_ ? std::count(text.begin(), text.end(), '\n') : 0;
  }

  void strike(Blow blow, const Program& program) const {
    switch (blow) {
      case Blow::kKill:
        return program.signal_group(SIGKILL);
      case Blow::kKillRank:
        try {
          kill(program.pid_of_rank(0), SIGKILL);
        } catch (const std::runtime_error&) {  // it is over, or has not begun
        }
        return;
      case Blow::kInterrupt:
        return program.signal_group(SIGINT);
      case Blow::kTerminate:
        kill(program.pid(), SIGTERM);
        return;
      case Blow::kHangUp:
        return program.signal_group(SIGHUP);
      case Blow::kFullDisk:
        return fill_disk();
      case Blow::kClosedPipe:
        return;
    }
  }

  /// Until no process of it is left.
  void run_and_strike(Blow blow, const std::vector<std::string>& words, size_t lines,
                      double later_s) {
    began_ = false;
    if (blow == Blow::kClosedPipe) {
      PipedProgram program(words);
      wait_for(lines, later_s, [&] { return program.ended(); });
      program.hang_up();
      const Stopwatch watch;
      while (!program.ended() && watch.seconds() < 60)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      EXPECT_TRUE(program.ended()) << "a closed pipe hangs the run";
      return;
    }
    Program program(words);
    wait_for(lines, later_s, [&] { return is_zombie(program); });
    strike(blow, program);
    outcome_ = program.wait();
    const Stopwatch watch;
    while (!program.processes().empty() && watch.seconds() < 20)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_TRUE(program.processes().empty());
  }
  static bool is_zombie(const Program& program) {
    siginfo_t info = {};
    return waitid(P_PID, static_cast<id_t>(program.pid()), &info, WEXITED | WNOHANG | WNOWAIT) ==
               0 &&
           info.si_pid == program.pid();
  }

  void expect_old_or_new() {
    // A look finishes what a kill between two renames left, and leaves the rest alone.
    EXPECT_THAT(refusal(arguments(run_)), HasSubstr("holds a run already"));
    const auto model = model_in(run_);
    EXPECT_TRUE(model == old_ || model == new_) << "weights "
                                                << (model.first == old_.first   ? "old"
                                                    : model.first == new_.first ? "new"
                                                                                : "?")
                                                << ", config.json "
                                                << (model.second == old_.second   ? "old"
                                                    : model.second == new_.second ? "new"
                                                                                  : "?");
    expect_whole_lines(run_);
    if (model == new_) ++replaced_;
  }

  void copy_old_run() {
    fs::remove_all(run_);
    fs::remove(folder_ / "disk" / "filler");
    fs::copy(folder_ / "old", run_);
    old_metrics_ = read_file(run_ / "metrics.jsonl");
  }

  fs::path prefix_, run_;
  std::pair<std::string, std::string> old_, new_;
  std::string old_metrics_;
  double whole_s_ = 0;  // of a run that nobody disturbs
  bool mounted_ = false, began_ = false;
  int replaced_ = 0;
  Outcome outcome_;
};

class TortureTest : public DiskTest, public ::testing::WithParamInterface<Case> {};

TEST_P(TortureTest, an_older_run_is_as_it_was_or_wholly_replaced) {
  const auto [blow, moments] = GetParam();
  ASSERT_NO_FATAL_FAILURE(make_models());
  if (blow == Blow::kFullDisk && !mount_disk())
    GTEST_SKIP() << "a disk that can be filled is mounted by root only";
  Random random(std::stoull(env_string("DISTCA_TORTURE_SEED").value_or("1")),
                static_cast<uint64_t>(blow));
  for (int moment = 0; moment < moments; ++moment) {
    copy_old_run();
    // Every third one is near the end, where weights are replaced.
    // A disk is full before the first step, which is another test, or later.
    const size_t lines = moment % 3 == 2           ? kSteps
                         : blow == Blow::kFullDisk ? 1 + random.below(kSteps)
                                                   : random.below(kSteps + 1);
    const double later_s = random.uniform() * (lines == 0 ? 1.0 : 0.02);
    SCOPED_TRACE(fmt::format("after {} lines and {:.1f} ms", lines, later_s * 1e3));
    run_and_strike(blow, arguments(run_, {"train.overwrite=true"}), lines, later_s);
    expect_old_or_new();
    if (blow != Blow::kFullDisk) continue;
    EXPECT_EQ(outcome_.exit_code, 0) << outcome_.err;
    EXPECT_EQ(model_in(run_), new_) << "room for the weights is taken at the start";
  }
  std::printf("%d of %d runs replaced the older one; undisturbed, one takes %.1f s\n", replaced_,
              moments, whole_s_);
}

TEST_P(TortureTest, a_model_of_others_is_untouched) {
  const auto [blow, moments] = GetParam();
  if (blow == Blow::kFullDisk && !mount_disk())
    GTEST_SKIP() << "a disk that can be filled is mounted by root only";
  Random random(7, static_cast<uint64_t>(blow));
  write_file_atomically(run_ / "model.safetensors", "precious");
  write_file_atomically(run_ / "config.json", "{\"mine\": true}");
  if (blow == Blow::kFullDisk) fill_disk();
  const auto before = contents(run_);
  for (int moment = 0; moment < moments; ++moment) {
    run_and_strike(blow, arguments(run_, {"train.overwrite=true"}), 0, 0.3 * random.uniform());
    EXPECT_EQ(contents(run_), before);
  }
}

TEST_F(DiskTest, a_disk_that_is_full_at_the_start_is_said_before_the_first_step) {
  ASSERT_NO_FATAL_FAILURE(make_models());
  if (!mount_disk()) GTEST_SKIP() << "a disk that can be filled is mounted by root only";
  copy_old_run();
  fill_disk();
  const auto before = contents(run_);
  const Outcome outcome = run_distca(arguments(run_, {"train.overwrite=true"}));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err,
              ::testing::StartsWith("distca: error: " + run_.string() +
                                    "/model.safetensors: cannot be written: No space"));
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_THAT(outcome.out, ::testing::Not(HasSubstr("step ")));
  EXPECT_EQ(contents(run_), before);
}

constexpr Blow kBlows[] = {Blow::kKill,   Blow::kKillRank,   Blow::kInterrupt, Blow::kTerminate,
                           Blow::kHangUp, Blow::kClosedPipe, Blow::kFullDisk};

std::vector<Case> cases(int moments) {
  std::vector<Case> all;
  for (Blow blow : kBlows) all.push_back({blow, moments});
  return all;
}

INSTANTIATE_TEST_SUITE_P(few, TortureTest,
                         ::testing::Values(Case{Blow::kKill, 2}, Case{Blow::kClosedPipe, 1},
                                           Case{Blow::kFullDisk, 2}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(full, TortureTest, ::testing::ValuesIn(cases(12)), name_of);

}  // namespace
}  // namespace distca::testing
