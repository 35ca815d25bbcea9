// A training step of two workers under our plans and schedules beside its rivals, in turns on the
// same batches:
//   build/release/bench/training
// Rivals: fixed packing, variable-length packing, per-document context parallelism, the paper's
// greedy, each under its best schedule, and PyTorch DDP. Control: equal documents.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "bench/program.h"
#include "bench/training_report.h"
#include "bench/worker_ranks.h"
#include "distca/base/error.h"

namespace distca::bench {
namespace {

constexpr int kWorkers = 2;

struct Arguments {
  std::string data = "data/stdlib";
  std::string lengths = DISTCA_LENGTHS;  // beside the source folder
  std::string python = DISTCA_PYTHON;
  std::string profile = "pairs";
  std::string only;
  std::vector<std::string> rivals = kRivals;
  BatchShape shape{.nano_batch_tokens = 8192, .nano_batches = 2, .workers = kWorkers};
  int rounds = 15;
  uint64_t seed = 1;
  bool json = false;
};

/// Small, so that a step takes a second or two; core attention is a third to a half of it.
LlamaConfig small_llama() {
  return {.vocab_size = 256,
          .hidden_size = 192,
          .intermediate_size = 512,
          .num_hidden_layers = 2,
          .num_attention_heads = 6,
          .num_key_value_heads = 2,
          .head_dim = 64};
}

ContestOptions contest_options(const Arguments& arguments) {
  ContestOptions options{.model = small_llama(),
                         .shape = arguments.shape,
                         .seed = arguments.seed,
                         .rounds = arguments.rounds,
                         .rivals = arguments.rivals,
                         .python = arguments.python,
                         .script = DISTCA_DDP_RIVAL};
  options.profile = profile_by_name(arguments.profile);
  return options;
}

/// Those that can be read; why the others cannot.
std::vector<BatchSource> read_sources(const Arguments& arguments,
                                      std::vector<std::string>& absent) {
  const int count = Contest::num_batches(arguments.rounds);
  std::vector<BatchSource> sources;
  const auto read = [&](const char* name, const auto& make) {
    if (!arguments.only.empty() && arguments.only != name) return;
    try {
      sources.push_back(make());
    } catch (const Error& error) {
      absent.push_back(fmt::format("{}: {}", name, error.what()));
    }
  };
  read("real", [&] { return real_source(arguments.data, arguments.shape, count, arguments.seed); });
  read("long-tailed", [&] {
    return long_tailed_source(arguments.lengths, arguments.shape, count, arguments.seed);
  });
  if (sources.empty()) throw Error(ErrorKind::kData, "{}", fmt::join(absent, "; "));
  return sources;
}

/// How many bars ours missed; 0 on all ranks but 0.
int measure(const Arguments& arguments, Communicator& comm) {
  if (comm.size() != kWorkers) {
    throw Error(ErrorKind::kUsage, "started as one of {} ranks: {} are measured", comm.size(),
                kWorkers);
  }
  TrainingReport report{.options = contest_options(arguments), .workers = comm.size()};
  const std::vector<BatchSource> sources = read_sources(arguments, report.absent);
  Contest contest(report.options, comm);
  report.check = contest.check_rival(sources[0].batches[0]);
  report.peak_gflops = contest.measure_peak();
  report.speeds = contest.measure_speeds(sources[0].batches);
  for (const BatchSource& source : sources) report.sources.push_back(contest.run(source));
  if (comm.rank() != 0) return 0;
  arguments.json ? print_json(report) : print_tables(report);
  return num_missed(report);
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app{"A training step of two workers beside its rivals, on the same batches.",
               "training"};
  app.add_option("--data", arguments.data, "Prefix of a prepared data set (PREFIX.idx, PREFIX.bin)")
      ->capture_default_str();
  app.add_option("--lengths", arguments.lengths, "Folder of lengths_pretrain.json")
      ->capture_default_str();
  app.add_option("--only", arguments.only, "One source of batches")
      ->check(CLI::IsMember({"real", "long-tailed"}));
  app.add_option("--rivals", arguments.rivals, "Those that are measured")
      ->delimiter(',')
      ->check(CLI::IsMember(kRivals))
      ->capture_default_str();
  app.add_option("--profile", arguments.profile,
                 "What our plans are priced by: pairs, or a profile of `distca profile`")
      ->capture_default_str();
  app.add_option("--nano-batch-tokens", arguments.shape.nano_batch_tokens)
      ->check(CLI::Range(512, 1 << 20))
      ->capture_default_str();
  app.add_option("--rounds", arguments.rounds)->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--seed", arguments.seed, "Of batches and weights")->capture_default_str();
  app.add_option("--python", arguments.python, "An interpreter with PyTorch")
      ->capture_default_str();
  app.add_flag("--json", arguments.json, "For machines");
  app.footer(
      "Exit code 0 when no bar is missed, else 1.\n"
      "Example:  build/release/bench/training --only real");
  if (!parse_options(app, argc, argv)) return 0;
  int missed = 0;
  const int code = run_worker_ranks({.program = "bench/training",
                                     .ranks = kWorkers,
                                     // DDP's start and a source's batches are waited for.
                                     .comm = {.timeout_s = 180}},
                                    std::span(argv, static_cast<size_t>(argc)),
                                    [&](Communicator& comm) { missed = measure(arguments, comm); });
  if (code != 0 || missed == 0) return code;
  // A rank's last words: else its launcher would report an exit code that nothing explains.
  fmt::print(stderr, "distca: bench/training: the bar is missed in {} of the sources\n", missed);
  return 1;
}

}  // namespace
}  // namespace distca::bench

int main(int argc, char** argv) {
  return distca::bench::run_benchmark("bench/training",
                                      [&] { return distca::bench::run(argc, argv); });
}
