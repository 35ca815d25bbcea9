// Plans of the five workloads and of sampled nano-batches against those of the paper's released
// planner: balance_target, bytes, largest send and receive, distance to the lower bound, time;
// rivals side by side.
//   bench/report.py build/release/bench/plan

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "bench/main.h"
#include "bench/original_plan.h"
#include "bench/plan_measure.h"
#include "bench/timing.h"
#include "distca/plan/sample_workloads.h"

namespace distca::bench {
namespace {

struct Arguments {
  std::vector<std::string> workloads;
  std::string folder = DISTCA_WORKLOADS;  // in the source folder
  std::string lengths = DISTCA_LENGTHS;   // likewise
  std::string scheduler = "balanced";
  int sampled = 20;
  uint64_t seed = 42;
  int rounds = 30;
};

constexpr const char* kWorkloads[] = {"pretrain_8x128k_0", "pretrain_64x128k_1",
                                      "pretrain_64x128k_2", "prolong_64x128k_0",
                                      "pretrain_512x128k_0"};

/// A plan's line. `kind`: "original", "variant", "rival"; `where`: "workload" or "sample".
void write_plan(Json measured, const char* kind, const std::string& name, const char* where,
                const std::string& of, const Workload& workload) {
  measured.update({{"kind", kind},
                   {"name", name},
                   {"where", where},
                   {"of", of},
                   {"servers", workload.ranks},
                   {"source", workload.source}});
  write_line("plan", std::move(measured));
}

/// The original's plan first, then the scheduler's in all its ways.
void measure_variants(const Workload& workload, const char* where, const std::string& of,
                      const std::string& scheduler, int rounds) {
  write_plan(measure_original(workload), "original", kOriginal, where, of, workload);
  for (const Variant& variant : balanced_variants(scheduler)) {
    Json measured = measure(workload, variant.options, rounds);
    measured.update({{"layout", variant.options.layout},
                     {"split_kv", variant.options.split_kv},
                     {"spread", variant.options.spread}});
    write_plan(std::move(measured), "variant", variant.name, where, of, workload);
  }
}

void measure_workload(const std::filesystem::path& path, const Arguments& arguments) {
  const Workload workload = read_workload(path);
  const std::string name = path.stem().string();
  measure_variants(workload, "workload", name, arguments.scheduler, arguments.rounds);
  for (const Variant& rival : rival_variants(arguments.scheduler)) {
    write_plan(measure(workload, rival.options, 0), "rival", rival.name, "workload", name,
               workload);
  }
}

/// Nano-batches of both sources (distca/plan/sample_workloads.h), for 8, 64 and 512 servers of
/// 131,072 tokens.
void measure_samples(const Arguments& arguments) {
  const std::filesystem::path folder = arguments.lengths;
  if (arguments.sampled == 0) return;
  const std::pair<SampleKind, std::vector<int64_t>> sources[] = {
      {SampleKind::kPretrain, read_lengths(folder / "lengths_pretrain.json")},
      {SampleKind::kProlong, read_lengths(folder / "lengths_prolong.json")}};
  for (const int servers : {8, 64, 512}) {
    for (const auto& [kind, lengths] : sources) {
      const std::vector<Workload> workloads = sample_workloads(
          lengths,
          {.kind = kind, .count = arguments.sampled, .ranks = servers, .seed = arguments.seed});
      for (size_t i = 0; i < workloads.size(); ++i)
        measure_variants(workloads[i], "sample", std::to_string(i), arguments.scheduler, 0);
    }
  }
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app{"BalanceTarget, bytes and time of plans, against the original's figures.", "plan"};
  app.option_defaults()->always_capture_default();
  app.add_option("workloads", arguments.workloads, "Workload files; default: all of --folder");
  app.add_option("--folder", arguments.folder);
  app.add_option("--lengths", arguments.lengths,
                 "Folder of lengths_pretrain.json and lengths_prolong.json")
      ->check(CLI::ExistingDirectory);
  app.add_option("--scheduler", arguments.scheduler, "The one that is held against the bars");
  app.add_option("--sampled", arguments.sampled,
                 "Sampled nano-batches of each source and size; 0: none")
      ->check(CLI::Range(0, 1000));
  app.add_option("--seed", arguments.seed, "Of the sampled ones");
  app.add_option("--rounds", arguments.rounds)->check(CLI::Range(1, 1000));
  app.footer("Example:  bench/report.py build/release/bench/plan");
  if (!parse_options(app, argc, argv)) return 0;

  if (arguments.workloads.empty()) {
    for (const char* name : kWorkloads)
      arguments.workloads.push_back(fmt::format("{}/{}.json", arguments.folder, name));
  }
  pin_to_this_core();
  write_header("plan", {{"rounds", arguments.rounds},
                        {"seed", arguments.seed},
                        {"sampled", arguments.sampled},
                        {"scheduler", arguments.scheduler}});
  for (const std::string& path : arguments.workloads) measure_workload(path, arguments);
  measure_samples(arguments);
  return 0;
}

}  // namespace
}  // namespace distca::bench

int main(int argc, char** argv) {
  return distca::bench::run_benchmark("bench/plan", [&] { return distca::bench::run(argc, argv); });
}
