// distca monitor: follows a run by its metrics.jsonl, in the terminal and in TensorBoard.

#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "cli/python_verb.h"
#include "cli/verbs.h"
#include "distca/base/clock.h"
#include "distca/base/console.h"
#include "distca/base/error.h"
#include "distca/base/json.h"
#include "distca/report/progress.h"
#include "distca/report/run_follower.h"

namespace distca::cli {
namespace {

constexpr auto kBetweenLooks = std::chrono::milliseconds(300);
/// A run that lost a rank starts again (--max-restarts), and nobody writes meanwhile.
constexpr double kRestartSeconds = 5;
/// A reader that takes nothing for so long has forgotten us. Until then, all is written.
constexpr double kReaderSeconds = 1e6;

struct MonitorArguments {
  std::string run;
  std::string tensorboard;  // the folder for events. Empty means that none are written.
};

/// Events for TensorBoard, which a program in Python writes (python/distca/_tensorboard.py).
class Events {
 public:
  explicit Events(const MonitorArguments& arguments)
      : verb_(kVerb, {arguments.tensorboard, std::filesystem::absolute(arguments.run)}) {
    expect_good();
  }
  void add(const std::string& line) {
    if (!verb_.write(line + "\n")) expect_good();
  }
  /// Returns when all is written.
  void finish() {
    verb_.end_input();
    expect_good();
  }

 private:
  static constexpr const char* kVerb = "distca-tensorboard";

  /// Reads what it says: nothing is wrong, or what is.
  void expect_good() {
    const std::string text = verb_.line();
    const Json said = parse_json(text, kVerb, ErrorKind::kIo);
    if (said.contains("refused"))
      throw Error(ErrorKind::kUsage, "{}", said.at("refused").get<std::string>());
    if (said.contains("failed"))
      throw Error(ErrorKind::kIo, "{}", said.at("failed").get<std::string>());
  }

  PythonVerb verb_;
};

/// Shows the lines of a run and gives them to TensorBoard.
class Monitor {
 public:
  explicit Monitor(const MonitorArguments& arguments)
      : run_(arguments.run), news_(run_.read()), progress_(standard_output()) {
    if (!news_.lines.empty()) step_of(news_.lines[0], 1);  // before anything is written
    if (!arguments.tensorboard.empty()) events_.emplace(arguments);
  }

  /// Returns when the run has ended.
  void follow() {
    bool is_written = run_.is_written();
    if (news_.lines.empty() && is_written)
      standard_output().progress_after(kSignOfLifeSeconds, "the first step is under way");
    while (true) {
      show_news();
      if (news_.lines.empty()) {
        if (has_ended(is_written)) break;
        std::this_thread::sleep_for(kBetweenLooks);
      }
      is_written = run_.is_written();
      news_ = run_.read();
    }
    if (!last_) {
      standard_output().important("the run ended before its first step");
    } else if (last_->step < last_->total_steps) {
      standard_output().important(
          fmt::format("the run ended after step {} of {}", last_->step, last_->total_steps));
    }
    finish_output();
    if (events_) events_->finish();
  }

 private:
  ShownStep step_of(const std::string& line, int64_t number) const {
    const std::string place = fmt::format("{} line {}", run_.path().string(), number);
    return shown_step(parse_json(line, place, ErrorKind::kData), place);
  }

  void show_news() {
    reads_again_ = reads_again_ || news_.from_start;
    int64_t number = run_.line_number() - std::ssize(news_.lines);
    for (const std::string& line : news_.lines) {
      const ShownStep step = step_of(line, ++number);
      if (reads_again_) {  // up to what was not there before
        if (step.time_s <= last_->time_s) continue;
        reads_again_ = false;
        standard_output().line(fmt::format("the run goes on with step {}", step.step));
      }
      last_ = step;
      progress_.show(step);
      if (++num_shown_ % 100 == 0) finish_output();  // the console holds some hundred lines
      if (events_) events_->add(line);
    }
    if (!news_.lines.empty()) finish_output();
  }

  /// Waits for the reader. One that has gone ends this process as it ends other tools.
  static void finish_output() {
    Console& out = standard_output();
    out.finish(kReaderSeconds);
    if (!out.is_closed()) return;
    const int why = out.write_error();
    DISTCA_THROW_IF(why != 0, ErrorKind::kIo, "stdout: {}", std::strerror(why));
    std::signal(SIGPIPE, SIG_DFL);
    std::raise(SIGPIPE);
  }

  /// Nothing is new, and whether the run was being written to before.
  bool has_ended(bool is_written) {
    if (last_ && last_->step == last_->total_steps) return true;
    if (is_written) {
      was_written_ = true;
      unwritten_.restart();
    }
    return !was_written_ || unwritten_.seconds() > kRestartSeconds;
  }

  RunFollower run_;
  RunFollower::News news_;
  Progress progress_;
  std::optional<Events> events_;
  std::optional<ShownStep> last_;
  int64_t num_shown_ = 0;
  bool reads_again_ = false;
  bool was_written_ = false;
  Stopwatch unwritten_;  // since the run was seen to be written to
};

}  // namespace

void add_monitor(CLI::App& app) {
  auto arguments = std::make_shared<MonitorArguments>();
  CLI::App* verb = app.add_subcommand(
      "monitor", "Follow a run in the terminal until it ends, and in TensorBoard");
  verb->add_option("run", arguments->run, "The run's folder (train.output_dir)")
      ->required()
      ->type_name("RUN");
  verb->add_option("--tensorboard", arguments->tensorboard,
                   "Write TensorBoard's events into this folder; replaces those of an earlier "
                   "distca monitor of this run (needs the package tensorboard of the Python "
                   "that DISTCA_PYTHON names)")
      ->type_name("DIR");
  verb->footer("Example:  distca monitor runs/demo --tensorboard tensorboard/demo");
  verb->callback([arguments] { Monitor(*arguments).follow(); });
}

}  // namespace distca::cli
