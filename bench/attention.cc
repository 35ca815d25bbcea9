// The CPU attention kernel (bars: docs/kernels.md): every instruction set compared with the core's
// peak and with PyTorch's operator, short shards with one long sequence, and several threads with
// one. Peaks are measured in the same rounds.
//   bench/report.py build/release/bench/attention

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "bench/attention_measure.h"
#include "bench/main.h"
#include "bench/timing.h"
#include "distca/base/machine.h"

namespace distca::bench {
namespace {

struct Arguments {
  int rounds = 15;
  int threads = 2;
  std::string only;
};

/// Where the calling thread is, then others that it may use.
std::vector<int> cores_for(int threads) {
  std::vector<int> cores{sched_getcpu()};
  for (const int core : allowed_cores()) {
    if (core != cores[0] && cores.size() < static_cast<size_t>(threads)) cores.push_back(core);
  }
  return cores;
}

Json instruction_sets() {
  Json names = Json::array();
  for (const kernels::Isa isa : {kernels::Isa::kAvx512Bf16, kernels::Isa::kAvx512,
                                 kernels::Isa::kAvx2, kernels::Isa::kPortable}) {
    if (kernels::isa_available(isa)) names.push_back(isa_name(isa));
  }
  return names;
}

void measure(const Arguments& arguments, const std::vector<RowSpec>& rows) {
  const MeasureOptions options{.rounds = arguments.rounds, .cores = cores_for(arguments.threads)};
  if (options.cores.size() < static_cast<size_t>(arguments.threads)) {
    fmt::print(stderr, "bench/attention: {} cores for {} threads\n", options.cores.size(),
               arguments.threads);
  }
  pin_to({options.cores.data(), 1});
  write_header("attention", {{"rounds", options.rounds},
                             {"cores", options.cores.size()},
                             {"instruction_sets", instruction_sets()},
                             {"amx_bf16", cpu_has("amx_bf16")}});
  Measurer measurer(options);
  measurer.peaks();
  for (size_t i = 0; i < rows.size(); ++i) {
    fmt::print(stderr, "[{}/{}] {}\n", i + 1, rows.size(), rows[i].name());
    measurer.row(rows[i]);
  }
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app{"The CPU attention kernel against the core's peak, PyTorch and itself.",
               "attention"};
  app.add_option("--rounds", arguments.rounds)->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--only", arguments.only, "Rows whose names hold all these words");
  app.add_option("--threads", arguments.threads, "Of the rows on several; 1: none of them")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.footer(
      "Alone on the machine, else the verdicts are \"not decidable here\".\n"
      "Example:  bench/report.py build/release/bench/attention --only \"lengths bf16 d128 8:8\"");
  if (!parse_options(app, argc, argv)) return 0;
  measure(arguments, selected_rows(all_rows(), arguments.only));
  return 0;
}

}  // namespace
}  // namespace distca::bench

int main(int argc, char** argv) {
  setenv("THP_MEM_ALLOC_ENABLE", "1", 0);  // PyTorch reads it at its first tensor
  return distca::bench::run_benchmark("bench/attention",
                                      [&] { return distca::bench::run(argc, argv); });
}
