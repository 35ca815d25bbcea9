// How much of the exchange is hidden: blocking, overlap and ping-pong between two workers with a
// slow wire between them, beside a run whose exchanges have one byte. As root, with iproute2:
//   bench/report.py build/release/bench/overlap
// Two network namespaces, joined by a veth pair with a token bucket in each direction, are made for
// the run and removed after it, whatever ends it.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "bench/lines.h"
#include "bench/main.h"
#include "bench/namespaces.h"
#include "bench/overlap_measure.h"
#include "bench/timing.h"
#include "bench/worker_ranks.h"
#include "distca/base/error.h"
#include "distca/base/scalar_type.h"

namespace distca::bench {
namespace {

constexpr int kSkipped = 77;  // as ctest and automake understand it

struct Arguments {
  OverlapOptions options{.model = overlap_model()};
  std::vector<double> rates = {25, 40};
  std::vector<double> fast = {60, 250, 0};
  std::string only;
};

std::vector<OverlapSetting> chosen(const Arguments& arguments) {
  std::vector<OverlapSetting> settings = overlap_settings(arguments.rates, arguments.fast);
  std::erase_if(settings, [&](const OverlapSetting& setting) {
    return setting.name().find(arguments.only) == std::string::npos;
  });
  if (settings.empty()) {
    throw Error(ErrorKind::kUsage,
                "--only '{}' selects no setting; there are \"25 MB/s shorter\", "
                "\"25 MB/s longer\", \"25 MB/s between\", \"unlimited shorter\" and the like",
                arguments.only);
  }
  return settings;
}

void measure(const Arguments& arguments, Communicator& comm) {
  const std::vector<OverlapSetting> settings = chosen(arguments);
  OverlapMeasurer measurer(arguments.options, comm);
  if (comm.rank() == 0) {
    write_header("overlap", {{"rounds", arguments.options.rounds},
                             {"shown_rounds", arguments.options.shown_rounds},
                             {"nano_batches", kNanoBatches},
                             {"model", arguments.options.model.to_hugging_face(0)},
                             {"type", short_name(arguments.options.model.dtype)}});
  }
  for (size_t i = 0; i < settings.size(); ++i) {
    if (comm.rank() == 0)
      fmt::print(stderr, "[{}/{}] {}\n", i + 1, settings.size(), settings[i].name());
    measurer.measure(settings[i]);
  }
}

/// In the process that was started by hand.
int start(std::span<char* const> words) {
  if (allowed_cores().size() < 2) {
    fmt::print(stderr, "skipped: needs a core for each of two workers\n");
    return kSkipped;
  }
  if (const std::string reason = why_no_namespaces(); !reason.empty()) {
    fmt::print(stderr, "skipped: {}\n", reason);
    return kSkipped;
  }
  std::vector<std::string> command = {std::filesystem::read_symlink("/proc/self/exe")};
  command.insert(command.end(), words.begin() + 1, words.end());
  const NamespacePair pair;
  return pair.run(command);
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app{"How much of the exchange is hidden under compute, over a slow wire.", "overlap"};
  app.add_option("--rounds", arguments.options.rounds)
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--shown-rounds", arguments.options.shown_rounds,
                 "Of settings and ways to overlap that are not judged")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--rates", arguments.rates, "MB/s of each direction, judged")
      ->check(CLI::Range(1.0, 1e5))
      ->capture_default_str();
  app.add_option("--fast", arguments.fast, "MB/s, only shown; 0: no limit")
      ->check(CLI::Range(0.0, 1e5))
      ->capture_default_str();
  app.add_option("--only", arguments.only, "Settings whose names hold this");
  app.footer(
      "As root and alone on the machine. Exit code 77, with the reason, where no namespaces can "
      "be\n"
      "made.\n"
      "Example:  bench/report.py build/release/bench/overlap --only \"25 MB/s shorter\"");
  if (!parse_options(app, argc, argv)) return 0;
  const std::span<char* const> words(argv, static_cast<size_t>(argc));
  chosen(arguments);  // refused before anything is made
  if (!is_worker_rank()) return start(words);
  return run_worker_ranks({.program = "bench/overlap", .comm = {.grace_s = 1}}, words,
                          [&](Communicator& comm) { measure(arguments, comm); });
}

}  // namespace
}  // namespace distca::bench

int main(int argc, char** argv) {
  return distca::bench::run_benchmark("bench/overlap",
                                      [&] { return distca::bench::run(argc, argv); });
}
