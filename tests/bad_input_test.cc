// Every bad input of the table gets exactly one clear line, the right exit code, and leaves the
// files as they were. With DISTCA_PRINT_TABLE=1 it prints what each gets, too, as a Markdown table.

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <regex>
#include <thread>

#include "distca/base/env.h"
#include "distca/base/file.h"
#include "distca/checkpoint/checkpoint_testing.h"
#include "distca/cost/attention_profile.h"
#include "distca/trace/chrome.h"
#include "tests/bad_input_table.h"
#include "tests/run_command.h"

namespace distca::testing {
namespace {

namespace fs = std::filesystem;

using Files = std::map<std::string, std::string>;  // path below a folder -> contents

/// "run/a run/b": files of `after` that `before` has not, or not so; "-a": one that is gone.
std::string difference(const Files& before, const Files& after) {
  Words names;
  for (const auto& [name, contents] : after) {
    const auto old = before.find(name);
    if (old == before.end() || old->second != contents) names.push_back(name);
  }
  for (const auto& [name, contents] : before) {
    if (!after.contains(name)) names.push_back("-" + name);
  }
  return fmt::format("{}", fmt::join(names, " "));
}

/// The shell commands that lead to a row's error line: its setup, then its command.
std::string input_of(const BadInput& row) {
  return row.setup.empty() ? row.command : row.setup + "; " + row.command;
}

struct Result {
  Outcome outcome;
  std::string files_left;
};

/// The folder that every row gets a copy of, and the variables $T and $W of the rows' commands.
class Inputs {
 public:
  Inputs() : folder_(fs::temp_directory_path() / fmt::format("distca_bad_input_{}", getpid())) {
    const fs::path base = folder_ / "base";
    fs::remove_all(folder_);
    make_data_set(folder_ / "made");
    fs::create_directories(base);
    fs::rename(folder_ / "made" / "data", base / "data");
    write_file_atomically(base / "text" / "a.md", "one two three\n");
    write_file_atomically(base / "text" / "b.md", "four five\n");
    write_file_atomically(base / "workload.json",
                          R"({"ranks": 2, "tokens_per_rank": 256, "doc_lens": [300, 212]})");
    write_file_atomically(base / "lengths.json", "[300, 212]");
    write_file_atomically(base / "profile.json", profile_to_json(h200_profile()));
    write_checkpoint(base / "saved", 3);
    // Writes the trace of ranks that have so many steps each and no other event.
    const auto write_trace = [&](const char* name, const std::vector<int>& ranks) {
      std::vector<std::string> events;
      for (const int steps : ranks) {
        std::vector<TraceEvent> made;
        for (int step = 1; step <= steps; ++step) {
          made.push_back({.kind = TraceKind::kStep,
                          .name = fmt::format("step {}", step),
                          .begin_s = step * 1.0,
                          .end_s = step + 0.5,
                          .step = step});
        }
        events.push_back(chrome_events(static_cast<int>(events.size()), TraceRank{}, made));
      }
      write_file_atomically(
          base / name, chrome_json("within", {}, std::vector<TraceRank>(ranks.size()), events));
    };
    write_trace("no_rank.json", {});
    write_trace("no_step.json", {0});
    write_trace("one_step.json", {1});
    write_trace("other_steps.json", {1, 2});
    write_trace("two_ranks.json", {1, 1});
    const Words train = train_arguments("data/text", "run", {});
    environment_ = {{"T", fmt::format("{} ", fmt::join(train, " "))},
                    {"W", fs::absolute("distca/plan/testdata/workloads/pretrain_8x128k_0.json")}};
    must("distca plan --workload workload.json --out plan.json", base);
  }
  ~Inputs() { fs::remove_all(folder_); }

  Result run(const BadInput& row, size_t number) const {
    const fs::path folder = folder_ / fmt::format("{}", number);
    fs::copy(folder_ / "base", folder, fs::copy_options::recursive);
    if (!row.setup.empty()) must(row.setup, folder);
    const Files before = read_files(folder);
    Result result;
    result.outcome = shell(row.command, folder);
    result.files_left = difference(before, read_files(folder));
    fs::remove_all(folder);
    return result;
  }

 private:
  Outcome shell(const std::string& command, const fs::path& folder) const {
    return Program(ShellLine{command, folder, environment_}).wait();
  }
  void must(const std::string& command, const fs::path& folder) const {
    const Outcome made = shell(command, folder);
    if (made.exit_code != 0) throw std::runtime_error(command + ": " + made.err);
  }

  fs::path folder_;
  Environment environment_;
};

std::vector<BadInput> all_rows() {
  std::vector<BadInput> rows;
  for (const auto& table :
       {bad_words, bad_data, bad_plans, bad_checkpoints, bad_weights_out,
#ifdef DISTCA_WITH_TORCH
        bad_configs, bad_models, bad_generations, bad_evaluations, bad_runs, bad_checks
#endif
       }) {
    std::ranges::move(table(), std::back_inserter(rows));
  }
  return rows;
}

/// Runs two rows at a time.
std::vector<Result> run_all(const std::vector<BadInput>& rows) {
  const Inputs inputs;
  std::vector<Result> results(rows.size());
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < rows.size(); i = next++) {
      try {
        results[i] = inputs.run(rows[i], i);
      } catch (const std::exception& error) {
        results[i].outcome = {.exit_code = -1, .out = {}, .err = error.what()};
      }
    }
  };
  std::thread other(work);
  work();
  other.join();
  return results;
}

void check(const BadInput& row, const Result& result) {
  const Outcome& outcome = result.outcome;
  SCOPED_TRACE(input_of(row));
  error_line(outcome, row.exit_code);
  EXPECT_THAT(outcome.err, ::testing::HasSubstr(row.message));
  EXPECT_EQ(outcome.out.empty(), !row.prints) << outcome.out;
  EXPECT_EQ(result.files_left, row.files_left);
}

std::string cell(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return "`" + std::regex_replace(text, std::regex(R"(\|)"), "\\|") + "`";
}

void print(const std::vector<BadInput>& rows, const std::vector<Result>& results) {
  fmt::print("| input | message | exit code | files left |\n|---|---|---|---|\n");
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::string line = results[i].outcome.err;
    fmt::print("| {} | {} | {} | {} |\n", cell(input_of(rows[i])),
               cell(line.substr(0, line.find_last_not_of('\n') + 1)), results[i].outcome.exit_code,
               results[i].files_left.empty() ? "as before" : "new: " + results[i].files_left);
  }
}

TEST(BadInput, each_gets_one_clear_line_and_leaves_the_files_alone) {
  const std::vector<BadInput> rows = all_rows();
  const std::vector<Result> results = run_all(rows);
  if (env_string("DISTCA_PRINT_TABLE")) print(rows, results);
  for (size_t i = 0; i < rows.size(); ++i) check(rows[i], results[i]);
#ifdef DISTCA_WITH_TORCH
  EXPECT_GE(rows.size(), 100u);
#endif
}

}  // namespace
}  // namespace distca::testing
