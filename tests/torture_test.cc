// A run that is killed, interrupted, cut off from its terminal or left without disk at random
// moments, in a folder that holds an older run or somebody's model: afterwards the older weights
// and their config.json are as they were or the new ones are whole, what others made is untouched,
// every line of metrics.jsonl is whole, and a run that was asked to stop has saved where it was.
//
// DISTCA_TORTURE_SEED moves the moments (1).

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <optional>
#include <regex>
#include <thread>

#include "distca/base/clock.h"
#include "distca/base/env.h"
#include "distca/base/file.h"
#include "distca/base/random.h"
#include "distca/batch/test_folder.h"
#include "distca/checkpoint/folder.h"
#include "distca/checkpoint/reader.h"
#include "tests/run_command.h"
#include "tests/small_disk.h"

namespace distca::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr int kSteps = 40;

enum class Blow { kKill, kKillRank, kInterrupt, kTerminate, kHangUp, kClosedPipe, kFullDisk };
constexpr const char* kBlows[] = {"kill",    "kill_rank",   "interrupt", "terminate",
                                  "hang_up", "closed_pipe", "full_disk"};
struct Case {
  Blow blow;
  int moments;
};
std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  return kBlows[static_cast<int>(info.param.blow)];
}

void expect_whole_lines(const fs::path& run) {
  const std::string text = read_file(run / "metrics.jsonl");
  // Where SIGKILL meets a write, the kernel may end it, and it does so between two pages.
  const bool torn_by_the_kernel = text.size() % static_cast<size_t>(sysconf(_SC_PAGESIZE)) == 0;
  EXPECT_TRUE(text.ends_with('\n') || torn_by_the_kernel)
      << "half a line at the end, after " << text.size() << " bytes";
  int64_t step = 0;
  for (const Json& line : read_json_lines(run / "metrics.jsonl")) {  // throws for half a line
    EXPECT_EQ(line.at("step"), ++step);
  }
}

using Model = std::pair<std::string, std::string>;  // weights, their configuration

Model model_in(const fs::path& folder) {
  return {read_file(folder / "model.safetensors"), read_file(folder / "config.json")};
}

/// Another model than the older run's: weights and config.json of one do not go with the other's.
Words arguments(const fs::path& prefix, const fs::path& run, const Words& more = {}) {
  const Words words = {"--workers", "2", fmt::format("train.steps={}", kSteps),
                       "train.validation_every=0", "comm.grace_s=1"};
  return train_arguments(prefix, run, joined(words, more));
}

/// The data, the older run, and what the new one makes where nobody disturbs it, for all cases.
struct Made {
  Made() : folder(fs::temp_directory_path() / fmt::format("distca_torture_{}", getpid())) {
    fs::remove_all(folder);  // a case before may have left it by an error
    fs::create_directories(folder);
    prefix = make_data_set(folder);
    succeed(train_arguments(prefix, folder / "old",
                            {"train.steps=2", "batch.max_document_tokens=256"}));
    const Stopwatch watch;
    succeed(arguments(prefix, folder / "new"));
    whole_s = watch.seconds();
    old_model = model_in(folder / "old");
    new_model = model_in(folder / "new");
    EXPECT_NE(old_model.first, new_model.first);
    EXPECT_NE(old_model.second, new_model.second);
  }
  ~Made() { fs::remove_all(folder); }

  fs::path folder, prefix;
  Model old_model, new_model;
  double whole_s = 0;  // seconds that a run takes if nobody disturbs it
};
const Made& made() {
  static const Made kMade;
  return kMade;
}

class DiskTest : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    run_ = folder_ / "run";
  }
  void TearDown() override {
    disk_.reset();
    FolderTest::TearDown();
  }

  Words overwriting() const { return arguments(made().prefix, run_, {"train.overwrite=true"}); }

  /// Gives the run's folder a disk of its own. Returns false if mounting one is not permitted.
  bool mount_disk() {
    disk_.emplace(folder_ / "disk", "2m");
    run_ = folder_ / "disk" / "run";
    return disk_->mounted();
  }

  /// Waits until the run has written so many lines, and then a little longer, or until it is over.
  void wait_for(size_t lines, double later_s, const Program& program) {
    const auto done = [&] {
      return lines == 0 || is_zombie(program) ||
             (fs::exists(run_ / "metrics.jsonl") && lines_of_new_run() >= lines);
    };
    ASSERT_TRUE(wait_until(done, kPatience, 0.0005));
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
        return disk_->fill();
      case Blow::kClosedPipe:
        return;
    }
  }

  /// Starts the run, strikes it and waits until no process of it is left.
  void run_and_strike(Blow blow, size_t lines, double later_s) {
    began_ = false;
    const bool piped = blow == Blow::kClosedPipe;
    Pipe pipe;
    const int in = piped ? pipe.in.get() : Streams::kFile;
    Program program(overwriting(), {}, {.out = in, .err = in});
    pipe.in = FileDescriptor();
    wait_for(lines, later_s, program);
    if (piped) pipe.out = FileDescriptor();
    strike(blow, program);
    outcome_ = program.wait();
    EXPECT_TRUE(wait_until([&] { return program.processes().empty(); }));
  }
  static bool is_zombie(const Program& program) {
    siginfo_t info = {};
    return waitid(P_PID, static_cast<id_t>(program.pid()), &info, WEXITED | WNOHANG | WNOWAIT) ==
               0 &&
           info.si_pid == program.pid();
  }

  void expect_old_or_new() {
    // A look finishes what a kill between two renames left, and leaves the rest alone.
    EXPECT_THAT(refusal(arguments(made().prefix, run_)),
                HasSubstr(complete_checkpoints(run_).empty() ? "holds a run already ("
                                                             : "holds a run with checkpoints ("));
    const auto model = model_in(run_);
    const auto& [old_weights, old_config] = made().old_model;
    const auto& [new_weights, new_config] = made().new_model;
    const auto which = [](const std::string& is, const std::string& was, const std::string& will) {
      return is == was ? "old" : is == will ? "new" : "?";
    };
    EXPECT_TRUE(model == made().old_model || model == made().new_model)
        << "weights " << which(model.first, old_weights, new_weights) << ", config.json "
        << which(model.second, old_config, new_config);
    expect_whole_lines(run_);
    if (model == made().new_model) ++replaced_;
    expect_saved_where_said();
  }

  /// Only who was asked to stop has saved its state, and says at which step.
  void expect_saved_where_said() const {
    static const std::regex kSaid("stopped by SIG[A-Z]+ after step ([0-9]+) of 40; saved, resume ");
    std::smatch match;
    const bool said = std::regex_search(outcome_.err, match, kSaid);
    const std::vector<CheckpointPlace> saved = complete_checkpoints(run_);
    EXPECT_EQ(saved.size(), said ? 1u : 0u) << outcome_.err;
    if (!said || saved.empty()) return;
    EXPECT_EQ(saved.front().step, std::stoll(match[1]));
    EXPECT_EQ(read_json_lines(run_ / "metrics.jsonl").size(), std::stoull(match[1]));
    CheckpointReader(saved.front().folder).check();
  }

  void copy_old_run() {
    fs::remove_all(run_);
    if (disk_) disk_->clear();
    fs::copy(made().folder / "old", run_);
    old_metrics_ = read_file(run_ / "metrics.jsonl");
  }

  fs::path run_;
  std::string old_metrics_;
  std::optional<SmallDisk> disk_;
  bool began_ = false;
  int replaced_ = 0;
  Outcome outcome_;
};

class TortureTest : public DiskTest, public ::testing::WithParamInterface<Case> {};

TEST_P(TortureTest, an_older_run_is_as_it_was_or_wholly_replaced) {
  const auto [blow, moments] = GetParam();
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
    run_and_strike(blow, lines, later_s);
    expect_old_or_new();
    if (blow != Blow::kFullDisk) continue;
    EXPECT_EQ(outcome_.exit_code, 0) << outcome_.err;
    EXPECT_EQ(model_in(run_), made().new_model) << "room for the weights is taken at the start";
  }
  std::printf("%d of %d runs replaced the older one; undisturbed, one takes %.1f s\n", replaced_,
              moments, made().whole_s);
}

TEST_P(TortureTest, a_model_of_others_is_untouched) {
  const auto [blow, moments] = GetParam();
  if (blow == Blow::kFullDisk && !mount_disk())
    GTEST_SKIP() << "a disk that can be filled is mounted by root only";
  Random random(7, static_cast<uint64_t>(blow));
  write_file_atomically(run_ / "model.safetensors", "precious");
  write_file_atomically(run_ / "config.json", "{\"mine\": true}");
  if (blow == Blow::kFullDisk) disk_->fill();
  const auto before = read_files(run_);
  for (int moment = 0; moment < moments; ++moment) {
    run_and_strike(blow, 0, 0.3 * random.uniform());
    EXPECT_EQ(read_files(run_), before);
  }
}

TEST_F(DiskTest, a_disk_that_is_full_at_the_start_is_said_before_the_first_step) {
  if (!mount_disk()) GTEST_SKIP() << "a disk that can be filled is mounted by root only";
  copy_old_run();
  disk_->fill();
  const auto before = read_files(run_);
  const Outcome outcome = run_distca(overwriting());
  EXPECT_THAT(
      error_line(outcome, 1),
      ::testing::StartsWith(run_.string() + "/model.safetensors: cannot be written: No space"));
  EXPECT_THAT(outcome.out, ::testing::Not(HasSubstr("step ")));
  EXPECT_EQ(read_files(run_), before);
}

std::vector<Case> cases(int moments) {
  std::vector<Case> all;
  for (size_t blow = 0; blow < std::size(kBlows); ++blow)
    all.push_back({static_cast<Blow>(blow), moments});
  return all;
}

INSTANTIATE_TEST_SUITE_P(few, TortureTest,
                         ::testing::Values(Case{Blow::kKill, 2}, Case{Blow::kClosedPipe, 1},
                                           Case{Blow::kFullDisk, 2}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(full, TortureTest, ::testing::ValuesIn(cases(12)), name_of);

}  // namespace
}  // namespace distca::testing
