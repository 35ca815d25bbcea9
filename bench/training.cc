// A training step of two workers under our plans and overlap modes compared with its rivals, in
// turns on the same batches:
//   bench/report.py build/release/bench/training
// Rivals: fixed packing, variable-length packing, per-document context parallelism, the paper's
// greedy, each under its best overlap mode, and PyTorch DDP. Control: equal documents.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "bench/main.h"
#include "bench/rival.h"
#include "bench/training_contest.h"
#include "bench/worker_ranks.h"
#include "distca/base/error.h"
#include "distca/base/scalar_type.h"

namespace distca::bench {
namespace {

struct Arguments {
  ContestOptions contest = small_contest();
  std::string data = "data/stdlib";
  std::string lengths = DISTCA_LENGTHS;  // in the source folder
  std::string profile = "pairs";
  std::string only;
};

/// Returns the sources that can be read. `absent` gets why the others cannot.
std::vector<BatchSource> read_sources(const Arguments& arguments,
                                      std::vector<std::string>& absent) {
  const ContestOptions& contest = arguments.contest;
  const int count = num_batches(contest.rounds);
  std::vector<BatchSource> sources;
  const auto read = [&](const char* name, const auto& make) {
    if (!arguments.only.empty() && arguments.only != name) return;
    try {
      sources.push_back(make());
    } catch (const Error& error) {
      absent.push_back(fmt::format("{}: {}", name, error.what()));
    }
  };
  read("real", [&] { return real_source(arguments.data, contest.shape, count, contest.seed); });
  read("long-tailed",
       [&] { return long_tailed_source(arguments.lengths, contest.shape, count, contest.seed); });
  if (sources.empty()) throw Error(ErrorKind::kData, "{}", fmt::join(absent, "; "));
  return sources;
}

void measure(const Arguments& arguments, Communicator& comm) {
  const int workers = arguments.contest.shape.workers;
  if (comm.size() != workers) {
    throw Error(ErrorKind::kUsage, "started as one of {} ranks: {} are measured", comm.size(),
                workers);
  }
  ContestOptions options = arguments.contest;
  options.profile = profile_by_name(arguments.profile);
  std::vector<std::string> absent;
  const std::vector<BatchSource> sources = read_sources(arguments, absent);
  if (comm.rank() == 0) {
    write_header("training", {{"workers", workers},
                              {"rounds", options.rounds},
                              {"nano_batches", options.shape.nano_batches},
                              {"nano_batch_tokens", options.shape.nano_batch_tokens},
                              {"model", options.model.to_hugging_face(0)},
                              {"type", short_name(options.model.dtype)},
                              {"load", options.profile ? "ns of the profile" : "pairs"},
                              {"memory_cap", kMemoryCap},
                              {"absent", absent}});
  }
  run_contest(options, sources, comm);
}

int run(int argc, char** argv) {
  Arguments arguments;
  arguments.contest.python = kPython;
  CLI::App app{"A training step of two workers beside its rivals, on the same batches.",
               "training"};
  app.option_defaults()->always_capture_default();
  app.add_option("--data", arguments.data,
                 "Prefix of a prepared data set (PREFIX.idx, PREFIX.bin)");
  app.add_option("--lengths", arguments.lengths, "Folder of lengths_pretrain.json");
  app.add_option("--only", arguments.only, "One source of batches")
      ->check(CLI::IsMember({"real", "long-tailed"}));
  app.add_option("--rivals", arguments.contest.rivals, "Those that are measured")
      ->delimiter(',')
      ->check(CLI::IsMember(kRivals));
  app.add_option("--profile", arguments.profile,
                 "What our plans are priced by: pairs, or a profile of `distca profile`");
  app.add_option("--nano-batch-tokens", arguments.contest.shape.nano_batch_tokens)
      ->check(CLI::Range(512, 1 << 20));
  app.add_option("--rounds", arguments.contest.rounds)->check(CLI::Range(1, 1000));
  app.add_option("--seed", arguments.contest.seed, "Of batches and weights");
  app.add_option("--python", arguments.contest.python, "An interpreter with PyTorch");
  app.footer("Example:  bench/report.py build/release/bench/training --only real");
  if (!parse_options(app, argc, argv)) return 0;
  // DDP's start and a source's batches are waited for.
  return run_worker_ranks({.program = "bench/training",
                           .ranks = arguments.contest.shape.workers,
                           .comm = {.timeout_s = 180}},
                          std::span(argv, static_cast<size_t>(argc)),
                          [&](Communicator& comm) { measure(arguments, comm); });
}

}  // namespace
}  // namespace distca::bench

int main(int argc, char** argv) {
  return distca::bench::run_benchmark("bench/training",
                                      [&] { return distca::bench::run(argc, argv); });
}
