// The CPU attention kernel against the bars of docs/kernels.md: share of the core's peak per
// instruction set, beside PyTorch's operator, short shards against one long sequence, and several
// threads against one. Peaks are measured in the same rounds.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "bench/attention_report.h"
#include "bench/program.h"
#include "bench/timing.h"
#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/base/machine.h"

namespace distca::bench {
namespace {

struct Arguments {
  int rounds = 0;
  int threads = 2;
  bool quick = false;
  bool rows = false;
  std::string only;
  std::string json;
};

constexpr int kQuickRounds = 5;

/// Where the calling thread is, then others that it may use.
std::vector<int> cores_for(int threads) {
  std::vector<int> cores{sched_getcpu()};
  for (const int core : allowed_cores()) {
    if (core != cores[0] && cores.size() < static_cast<size_t>(threads)) cores.push_back(core);
  }
  return cores;
}

int measure(const Arguments& arguments, const std::vector<RowSpec>& rows) {
  MeasureOptions options{.rounds = arguments.rounds > 0 ? arguments.rounds
                                   : arguments.quick    ? kQuickRounds
                                                        : kLeastRounds,
                         .quick = arguments.quick,
                         .cores = cores_for(arguments.threads),
                         .machine = {.avx512 = kernels::isa_available(kernels::Isa::kAvx512),
                                     .amx = cpu_has("amx_bf16")}};
  if (options.cores.size() < static_cast<size_t>(arguments.threads)) {
    fmt::print(stderr, "bench/attention: {} cores for {} threads\n", options.cores.size(),
               arguments.threads);
  }
  std::optional<AtomicFile> json;  // a path that cannot be written is refused before minutes pass
  if (!arguments.json.empty()) json.emplace(arguments.json);
  pin_to({options.cores.data(), 1});
  Measurer measurer(options);
  Results results;
  measurer.peaks(results);
  for (size_t i = 0; i < rows.size(); ++i) {
    fmt::print(stderr, "[{}/{}] {}\n", i + 1, rows.size(), rows[i].name());
    measurer.row(rows[i], results);
  }
  fmt::print("{}", report_text(options, results));
  if (json) {
    json->write(canonical_json(report_json(options, results)));
    json->commit();
  }
  return tally(results).missed == 0 ? 0 : 1;
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app{"The CPU attention kernel against the core's peak, PyTorch and itself.",
               "attention"};
  app.add_option("--rounds", arguments.rounds, "Default: 15, with --quick 5")
      ->check(CLI::Range(1, 1000));
  app.add_flag("--quick", arguments.quick, "Few rows and rounds");
  app.add_option("--only", arguments.only, "Rows whose names hold all these words");
  app.add_option("--threads", arguments.threads, "Of the rows on several; 1: none of them")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_flag("--rows", arguments.rows, "Print the rows' names and end");
  app.add_option("--json", arguments.json, "A file for machines, beside the tables");
  app.footer(
      "Alone on the machine, else the verdicts are \"not decidable here\".\n"
      "Exit code 0 when no bar is missed, else 1.\n"
      "Example:  build/release/bench/attention --only \"lengths bf16 d128 8:8\"");
  if (!parse_options(app, argc, argv)) return 0;
  std::vector<RowSpec> rows = selected_rows(all_rows(arguments.quick), arguments.only);
  if (arguments.threads == 1) {
    std::erase_if(rows, [](const RowSpec& row) { return row.kind == RowKind::kThreads; });
    if (rows.empty()) {
      throw Error(ErrorKind::kUsage,
                  "--only '{}' selects rows on several threads only, --threads 1 none of them: "
                  "leave --threads out",
                  arguments.only);
    }
  }
  if (arguments.rows) {
    for (const RowSpec& row : rows) fmt::print("{}\n", row.name());
    return 0;
  }
  return measure(arguments, rows);
}

}  // namespace
}  // namespace distca::bench

int main(int argc, char** argv) {
  setenv("THP_MEM_ALLOC_ENABLE", "1", 0);  // PyTorch reads it at its first tensor
  return distca::bench::run_benchmark("bench/attention",
                                      [&] { return distca::bench::run(argc, argv); });
}
