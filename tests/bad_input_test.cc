// Every bad input of the table gets exactly one clear line, the right exit code, and leaves the
// files as they were. With DISTCA_PRINT_TABLE=1 it prints what each gets, too, as a Markdown table.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <regex>
#include <set>
#include <sstream>
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
      write_file_atomically(base / name,
                            chrome_json("within", std::vector<TraceRank>(ranks.size()), events));
    };
    write_trace("no_rank.json", {});
    write_trace("no_step.json", {0});
    write_trace("one_step.json", {1});
    write_trace("other_steps.json", {1, 2});
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
  for (const auto& table : {bad_words, bad_data, bad_plans, bad_checkpoints, bad_weights_out,
#ifdef DISTCA_WITH_TORCH
                            bad_configs, bad_models, bad_generations, bad_runs, bad_checks
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

/// Returns a pattern of the printed forms of a documented message. Words in capitals, such as
/// PREFIX, and ... stand for any text, and numbers for any number.
[[maybe_unused]] std::regex pattern_of(const std::string& documented) {
  std::string text;
  for (const char c : documented)
    text += std::strchr("()[]{}.*+?^$|\\", c) ? fmt::format("\\{}", c) : std::string(1, c);
  text = std::regex_replace(text, std::regex(R"(\\\.\\\.\\\.)"), ".*");
  text = std::regex_replace(text, std::regex(R"([A-Z_@]{3,}|\bN\b)"), ".*");
  text = std::regex_replace(text, std::regex(R"(-?[0-9]([0-9,]|\\\.(?=[0-9]))*)"), "[-+0-9e,.]+");
  return std::regex(text);
}

/// Messages of the table Messages in docs/errors.md: the first of each row.
[[maybe_unused]] std::vector<std::string> documented_messages() {
  std::istringstream lines(read_file("docs/errors.md"));
  std::vector<std::string> messages;
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("## ")) inside = line == "## Messages";
    if (!inside || !line.starts_with("| `")) continue;
    messages.push_back(line.substr(3, line.find('`', 3) - 3));
  }
  return messages;
}

/// Documented messages that have no row.
const std::set<std::string> kNoRow = {
    // Only a caller of make_plan gets it.
    "link between: 0 bytes per microsecond ...",
    // Need Python's package tokenizers, or one in its place: cli_data_test.py.
    "FILE line 7: not JSON", "FILE: holds no text",
    "... has no package tokenizers: install it (pip install tokenizers), ...",
    "...: no tokenizer_config.json beside it names an eos_token to end documents with: ...",
    // Need Python's package tensorboard, or one in its place: cli_monitor_test.py, test_monitor.py.
    "... has no package tensorboard: install it (pip install tensorboard), ...",
    "DIR: holds the events of another run: name another --tensorboard",
    // Needs two of them: tokenizer_files_test.cc.
    "data/a and data/b were made with different tokenizers: ...",
    // Needs a weight that no run has: hugging_face_writer_test.cc.
    "NAME has the number -70000, which is too large for float16; ...",
    // Needs a file of somebody else's in a folder of ours.
    "FILE: older weights, which cannot be removed: ...",
    // Depend on the PyTorch of the build.
    "train.device = cuda: this distca is built with PyTorch 2.13.0+cpu, which has no CUDA: ...",
    "train.device = cuda: PyTorch 2.13.0+cu130 finds no CUDA device on this machine: ...",
    // Needs a GPU.
    "softcap = 50: attention through PyTorch's CUDA operators has none; ...",
    // Need a GPU: memory_cap_test.cc and device_way_test.cc.
    "rank 1 would need 93.10 GiB of memory (weights 4.50, ...), its device has 79.10 GiB: ...",
    "rank 1 ran out of its device's memory in backward layer 3 core_attention of nano-batch 0 "
    "(CUDA out of memory. ...): ...",
    // Need NCCL or GPUs: nccl_library_test.cc, local_device_test.cc and nccl_group_test.cc.
    "comm.backend = nccl with train.device = cpu: NCCL 2.28.9 carries the memory of GPUs only; ...",
    "comm.backend = nccl: 4 ranks on this machine, and 2 CUDA devices are visible (...): ...",
    "rank 0 and rank 1 have the same CUDA device: NCCL takes one rank a device; ...",
    // Need ranks that differ: cli_train_test.cc has the first two.
    "rank 1 has attention.kernel = cpu-avx2, rank 0 has cpu-avx512: give all ranks the same",
    "rank 1 has data.prefix = DIR/text (40 documents, ...), rank 0 has ...: give all ranks the "
    "same",
    "rank 1 has ATEN_CPU_CAPABILITY = AVX2, rank 0 has AVX512: give all ranks the same",
    "rank 1 drew other initial weights than rank 0: ...",
    "rank 1 ended with other weights than rank 0: ...; rank 0's is saved in DIR ...",
    // Need a fault of ours or of the machine: verify_test.cc makes one.
    "the gradient of model.layers.1.self_attn.k_proj.weight on 3 workers differs from one worker's "
    "by 2.3e-07 of its largest value (bound 1e-10)",
    "rank 1 summed the gradients of 3 workers to other bits than rank 0: ...",
    // No value that a key may have leads there.
    "the last update left 3 weights that are not finite; lower optimizer.lr ...",
    // Needs workers on machines without a shared folder.
    "parallel.use_distributed_optimizer needs a train.output_dir that all workers see: ...",
    // Needs two runs: training_files_test.cc.
    "DIR: another run is writing here: ...",
    // Needs batches that differ much: plan_request_test.cc.
    "the batch of step 7: ...",
    // Need a tokenizer, or a run that goes on: cli_data_test.py, hugging_face_config_test.cc and
    // checkpoint_saver_test.cc.
    "FILE: it is Parquet, which is not read here: unpack it",
    "DIR: no file in it is called *.jsonl; --glob names others",
    "note: FOLDER/config.json: KEY = false is not known, and taken for a key that is off",
    "warning: some workers do not see DIR: rank 0 writes all of each checkpoint",
    // The run goes on.
    "warning: step 7: plan.max_memory_gib = ... has no room for kept keys: ...",
    "warning: DIR/metrics.jsonl: cannot be written: ...",
    "warning: step 7: its checkpoint is not saved: ...",
    "warning: FILE: ...; the checkpoint before it is looked at",
    // Need a disk that fills or hangs: run_folder_test.cc has the first.
    "...; the weights are not saved: the run has no checkpoint, and they are lost",
    "step 7: rank 1 did not write its part of the checkpoint within checkpoint.grace_s = 600 s",
    "step 7: rank 0 did not complete the checkpoint within ...",
    "warning: step 7: its checkpoint is saved, but an older one stays: FILE: ...",
    // Need a run that goes on, or data that nobody has looked at: resume_test.cc,
    // bad_tokens_test.cc.
    "step 7: the gradient norm is not finite; no step since --resume was good, so either the state "
    "that it went on from is spoilt, ... or a batch is bad, ...; --resume DIR goes on from an "
    "older "
    "one",
    "warning: step 7: the model does not have the ids of 3 tokens: what data.bad_tokens = "
    "skip_target says is done to them, ...",
    // No value leads there in a run this short, or not surely: the step before is looked at, too.
    "...; the weights are not finite either and are not saved",
    // Its weights are saved, too: training_files_test.cc.
    "the validation loss is not finite; ..."};

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
  std::string seen;
  for (size_t i = 0; i < rows.size(); ++i) {
    check(rows[i], results[i]);
    seen += results[i].outcome.err;
  }
#ifdef DISTCA_WITH_TORCH
  EXPECT_GE(rows.size(), 100u);
  for (const std::string& message : documented_messages()) {
    const bool excused = kNoRow.contains(message);
    EXPECT_NE(std::regex_search(seen, pattern_of(message)), excused)
        << message << "\nis in docs/errors.md" << (excused ? ", and has" : " and has no")
        << " row in tests/bad_input_plans.cc or tests/bad_input_runs.cc";
  }
#endif
}

}  // namespace
}  // namespace distca::testing
