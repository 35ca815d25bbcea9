// Plans of the five workloads and of sampled nano-batches against those of the paper's released
// planner: evenness, bytes, largest send and receive, distance to the lower bound, time; rivals
// side by side; PASS or FAIL for every bar.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "bench/original_plan.h"
#include "bench/plan_report.h"
#include "bench/program.h"
#include "bench/timing.h"

namespace distca::bench {
namespace {

struct Arguments {
  std::vector<std::string> workloads;
  std::string folder = DISTCA_WORKLOADS;  // in the source folder
  std::string lengths = DISTCA_LENGTHS;   // beside the source folder
  std::string scheduler = "balanced";
  int sampled = 20;
  uint64_t seed = 42;
  int rounds = 30;
  bool json = false;
};

constexpr const char* kWorkloads[] = {"pretrain_8x128k_0", "pretrain_64x128k_1",
                                      "pretrain_64x128k_2", "prolong_64x128k_0",
                                      "pretrain_512x128k_0"};

template <typename Item>
void append(std::vector<Item>& to, const std::vector<Item>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

void measure_workload(const std::filesystem::path& path, Report& report) {
  const Workload workload = read_workload(path);
  const std::string name = path.stem().string();
  const Measured denominator = measure_original(workload);
  for (size_t i = 0; i < report.variants.size(); ++i) {
    const Variant& variant = report.variants[i];
    const Measured measured = measure(workload, variant.options, report.rounds);
    report.rows.push_back({name, workload.ranks, variant.name, measured, denominator});
    append(report.verdicts, judge_plan(name, i, variant.name, workload.ranks, measured));
    if (!measured.refusal.empty()) continue;
    append(report.verdicts,
           judge_shares(name, i, variant.name, workload.ranks, shares(measured, denominator)));
  }
  report.rivals.push_back({name, workload.ranks, kOriginal, denominator, denominator});
  for (const Variant& rival : rival_variants(report.scheduler)) {
    report.rivals.push_back(
        {name, workload.ranks, rival.name, measure(workload, rival.options, 0), denominator});
  }
}

void measure_samples(const Arguments& arguments, Report& report) {
  if (arguments.sampled == 0) {
    report.no_samples = "--sampled 0";
    return;
  }
  if (!std::filesystem::exists(arguments.lengths)) {
    report.no_samples = arguments.lengths + " does not exist: name the folder with --lengths";
    report.verdicts.push_back({arguments.lengths, "folder missing", "sampled", 1, 0, 0});
    return;
  }
  report.samples =
      measure_sample(arguments.lengths, arguments.sampled, arguments.seed, report.variants);
  for (const SampleRow& row : report.samples) {
    const std::string& name = report.variants[row.variant].name;
    const std::string where = fmt::format("sampled {}, {} servers", row.source, row.servers);
    if (row.source == "both") {
      const auto faults = static_cast<double>(row.violations + row.refused);
      report.verdicts.push_back({where, "violations, refusals", name, faults, 0, 0});
      report.verdicts.push_back({where, "max/mean, worst", name, row.worst_max_over_mean, 1.02, 0});
    }
    if (row.planned == 0) continue;
    if (row.servers == 8) continue;  // shown only: the original often stops early with few bytes
    append(report.verdicts,
           judge_shares(where + ", median", row.variant, name, row.servers, row.median));
  }
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app{"Evenness, bytes and time of plans, against the original's figures.", "plan"};
  app.add_option("workloads", arguments.workloads, "Workload files; default: all of --folder");
  app.add_option("--folder", arguments.folder)->capture_default_str();
  app.add_option("--lengths", arguments.lengths,
                 "Folder of lengths_pretrain.json and lengths_prolong.json")
      ->capture_default_str();
  app.add_option("--scheduler", arguments.scheduler, "The one that is held against the bars")
      ->capture_default_str();
  app.add_option("--sampled", arguments.sampled,
                 "Sampled nano-batches of each source and size; 0: none")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  app.add_option("--seed", arguments.seed, "Of the sampled ones")->capture_default_str();
  app.add_option("--rounds", arguments.rounds)->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_flag("--json", arguments.json, "For machines");
  app.footer("Exit code 0 when every bar is reached, else 1.\nExample:  build/release/bench/plan");
  if (!parse_options(app, argc, argv)) return 0;

  if (arguments.workloads.empty()) {
    for (const char* name : kWorkloads)
      arguments.workloads.push_back(fmt::format("{}/{}.json", arguments.folder, name));
  }
  pin_to_this_core();
  Report report{.rounds = arguments.rounds,
                .seed = arguments.seed,
                .scheduler = arguments.scheduler,
                .variants = balanced_variants(arguments.scheduler)};
  for (const std::string& path : arguments.workloads) measure_workload(path, report);
  measure_samples(arguments, report);
  arguments.json ? print_json(report) : print_tables(report);
  for (const Verdict& verdict : report.verdicts) {
    if (!verdict.pass()) return 1;
  }
  return 0;
}

}  // namespace
}  // namespace distca::bench

int main(int argc, char** argv) {
  return distca::bench::run_benchmark("bench/plan", [&] { return distca::bench::run(argc, argv); });
}
