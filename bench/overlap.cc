// How much of the exchange is hidden: blocking, overlap and ping-pong between two workers with a
// slow wire between them, against a run whose exchanges have one byte. As root, with iproute2:
//   build/release/bench/overlap
// Two network namespaces, joined by a veth pair with a token bucket in each direction, are made for
// the run and removed after it, whatever ends it.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/namespaces.h"
#include "bench/overlap_report.h"
#include "bench/program.h"
#include "bench/timing.h"
#include "bench/worker_ranks.h"
#include "distca/base/error.h"
#include "distca/base/file.h"

namespace distca::bench {
namespace {

constexpr int kSkipped = 77;  // as ctest and automake understand it

struct Arguments {
  OverlapOptions options{.model = overlap_model()};
  std::vector<double> rates = {25, 40};
  std::vector<double> fast = {60, 250, 0};
  std::string only;
  std::string json;
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

/// How many bars were missed; 0 but on rank 0.
int measure(const Arguments& arguments, Communicator& comm) {
  const std::vector<OverlapSetting> settings = chosen(arguments);
  std::optional<AtomicFile> json;  // a path that cannot be written is refused before minutes pass
  if (comm.rank() == 0 && !arguments.json.empty()) json.emplace(arguments.json);
  OverlapMeasurer measurer(arguments.options, comm);
  std::vector<OverlapFigures> all;
  for (size_t i = 0; i < settings.size(); ++i) {
    if (comm.rank() == 0) {
      fmt::print(stderr, "[{}/{}] {}\n", i + 1, settings.size(), settings[i].name());
    }
    all.push_back(measurer.measure(settings[i]));
  }
  if (comm.rank() != 0) return 0;
  fmt::print("{}", overlap_text(arguments.options, all));
  std::fflush(stdout);
  if (json) {
    json->write(canonical_json(overlap_json(arguments.options, all)));
    json->commit();
  }
  return overlap_tally(all).missed;
}

/// In the process that was started by hand.
int start(std::span<char* const> words) {
  if (allowed_cores().size() < 2) {
    fmt::print("skipped: needs a core for each of two workers\n");
    return kSkipped;
  }
  if (const std::string reason = why_no_namespaces(); !reason.empty()) {
    fmt::print("skipped: {}\n", reason);
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
  app.add_option("--json", arguments.json, "A file for machines, beside the tables");
  app.footer(
      "As root and alone on the machine. Exit code 0 when no bar is missed, else 1; 77, with the\n"
      "reason, where no namespaces can be made.\n"
      "Example:  build/release/bench/overlap --only \"25 MB/s shorter\"");
  if (!parse_options(app, argc, argv)) return 0;
  const std::span<char* const> words(argv, static_cast<size_t>(argc));
  chosen(arguments);  // refused before anything is made
  if (!is_worker_rank()) return start(words);
  int missed = 0;
  const int code = run_worker_ranks({.program = "bench/overlap", .comm = {.grace_s = 1}}, words,
                                    [&](Communicator& comm) { missed = measure(arguments, comm); });
  return code != 0 ? code : missed > 0 ? 1 : 0;
}

}  // namespace
}  // namespace distca::bench

int main(int argc, char** argv) {
  return distca::bench::run_benchmark("bench/overlap",
                                      [&] { return distca::bench::run(argc, argv); });
}
