// How much of the exchange is hidden: the overlap modes none, within and ping-pong between two
// workers with a slow wire between them, compared with a run whose exchanges have one byte. As
// root, with iproute2:
//   bench/report.py build/release/bench/overlap
// Two network namespaces, joined by a veth pair with a token bucket in each direction, are made for
// the run and removed after it; what a killed run leaves, the next one removes.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/main.h"
#include "bench/namespaces.h"
#include "bench/overlap_measure.h"
#include "bench/timing.h"
#include "bench/worker_ranks.h"
#include "distca/base/error.h"
#include "distca/base/scalar_type.h"

namespace distca::bench {
namespace {

constexpr int kSkipped = 77;  // exit code of a skipped test for ctest and automake

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
  if (comm.rank() == 0) {
    write_header("overlap", {{"rounds", arguments.options.rounds},
                             {"shown_rounds", arguments.options.shown_rounds},
                             {"nano_batches", kNanoBatches},
                             {"model", arguments.options.model.to_hugging_face(0)},
                             {"type", short_name(arguments.options.model.dtype)}});
  }
  measure_overlap(arguments.options, settings, comm);
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app{"How much of the exchange is hidden under compute, over a slow wire.", "overlap"};
  app.option_defaults()->always_capture_default();
  app.add_option("--rounds", arguments.options.rounds)->check(CLI::Range(1, 1000));
  app.add_option("--shown-rounds", arguments.options.shown_rounds,
                 "Of settings and ways to overlap that are not judged")
      ->check(CLI::Range(1, 1000));
  app.add_option("--rates", arguments.rates, "MB/s of each direction, judged")
      ->check(CLI::Range(1.0, 1e5));
  app.add_option("--fast", arguments.fast, "MB/s, only shown; 0: no limit")
      ->check(CLI::Range(0.0, 1e5));
  app.add_option("--only", arguments.only, "Settings whose names hold this");
  app.footer(
      "As root and alone on the machine. Exit code 77, with the reason, where it cannot run.\n"
      "Example:  bench/report.py build/release/bench/overlap --only \"25 MB/s shorter\"");
  if (!parse_options(app, argc, argv)) return 0;
  chosen(arguments);  // refused before anything is made
  WorkerRanks ranks{.program = "bench/overlap", .comm = {.grace_s = 1}};
  std::optional<NamespacePair> namespaces;
  if (!is_worker_rank()) {
    try {
      if (allowed_cores().size() < 2) throw Error(ErrorKind::kIo, "two workers, one core");
      ranks.entering = namespaces.emplace().entering();
    } catch (const Error& error) {
      fmt::print(stderr, "skipped: needs root, iproute2 and a core for each of two workers: {}\n",
                 error.what());
      return kSkipped;
    }
  }
  return run_worker_ranks(ranks, std::span(argv, static_cast<size_t>(argc)),
                          [&](Communicator& comm) { measure(arguments, comm); });
}

}  // namespace
}  // namespace distca::bench

int main(int argc, char** argv) {
  return distca::bench::run_benchmark("bench/overlap",
                                      [&] { return distca::bench::run(argc, argv); });
}
