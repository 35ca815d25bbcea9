// Plans of the five workloads against the figures of the paper's released planner: evenness, bytes,
// time. Times: best of --rounds on one pinned thread.

#include <sched.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "distca/base/build_info.h"
#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/base/json.h"
#include "distca/base/text.h"
#include "distca/plan/exchange.h"
#include "distca/plan/plan_batch_input.h"
#include "distca/plan/summary.h"
#include "distca/plan/validate.h"

namespace distca {
namespace {

/// MiB that the original moves at tolerance 0.05: Q, K, V there and O back.
struct Original {
  const char* workload;
  double mib;
};
constexpr Original kOriginals[] = {{"pretrain_512x128k_0", 109'588 + 13'153},
                                   {"pretrain_64x128k_1", 11'921 + 1'657},
                                   {"pretrain_64x128k_2", 14'666 + 1'590},
                                   {"pretrain_8x128k_0", 1'568 + 224},
                                   {"prolong_64x128k_0", 11'694 + 1'553}};

struct Arguments {
  std::vector<std::string> workloads;
  std::string folder = DISTCA_WORKLOADS;  // in the source folder
  PlanOptions options;
  double tolerance = 0.05;
  int rounds = 30;
  bool json = false;
};

struct Row {
  std::string workload;
  PlanSummary summary;
  double before = 1;  // max/mean if every query were computed where it lives
  double mib_qkv = 0;
  double mib_o = 0;
  double share = 0;  // of the original's bytes; 0: not known
  double plan_ms = 0;
  double metadata_ms = 0;
  size_t violations = 0;
};

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos)
      return line.substr(colon + 2);
  }
  return "unknown";
}

void pin_to_this_core() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(sched_getcpu(), &cores);
  sched_setaffinity(0, sizeof(cores), &cores);
}

template <typename Work>
double best_ms(int rounds, const Work& work) {
  double best = 1e300;
  for (int round = 0; round < rounds; ++round) {
    const Stopwatch watch;
    work();
    best = std::min(best, watch.seconds() * 1e3);
  }
  return best;
}

Row measure(const std::filesystem::path& path, const Arguments& arguments) {
  const Workload workload = read_workload(path);
  PlanRequest request{.nano_batch = workload.nano_batch,
                      .cluster = Cluster::in_place(workload.ranks),
                      .shape = {.num_heads = 4, .num_kv_heads = 1},  // Llama-8B, one of 8 ranks
                      .options = arguments.options};
  request.options.tolerance_ppm = static_cast<int64_t>(arguments.tolerance * 1e6 + 0.5);

  Plan plan;
  Row row{.workload = path.stem().string(), .summary = {}};
  row.plan_ms = best_ms(arguments.rounds, [&] { plan = make_plan(request); });
  row.metadata_ms = best_ms(arguments.rounds, [&] {
    const PlanIndex index(plan);
    for (int rank = 0; rank < workload.ranks; ++rank) index.exchange(rank);
  });
  constexpr double kMib = 1 << 20;
  row.summary = summarize(plan);
  row.before = max_over_mean(plan.cluster, home_load(plan));
  row.mib_qkv = static_cast<double>(row.summary.qkv_bytes) / kMib;
  row.mib_o = static_cast<double>(row.summary.o_bytes) / kMib;
  for (const Original& original : kOriginals) {
    if (row.workload == original.workload) row.share = (row.mib_qkv + row.mib_o) / original.mib;
  }
  row.violations = validate(plan).size();
  return row;
}

void print_table(const std::vector<Row>& rows, const Arguments& arguments) {
  namespace build = build_info;
  fmt::print("plan: layout {}, scheduler {}, tolerance {}; best of {} on one pinned thread\n",
             arguments.options.layout, arguments.options.scheduler, arguments.tolerance,
             arguments.rounds);
  fmt::print("commit {}, {} build, {}, {}\n\n", build::kCommit, build::kBuildType, build::kCompiler,
             cpu_name());
  Table table({"workload", "before", "after", "MiB QKV", "MiB O", "of original", "max send",
               "max receive", "plan ms", "metadata ms", "violations"});
  const auto number = [](double value, int digits) {
    return fmt::format("{:.{}f}", value, digits);
  };
  for (const Row& row : rows) {
    table.add_row({row.workload, number(row.before, 3),
                   number(row.summary.max_over_mean, 3), number(row.mib_qkv, 0),
                   number(row.mib_o, 0), row.share > 0 ? number(row.share, 3) : "-",
                   number(static_cast<double>(row.summary.max_send_bytes) / (1 << 20), 0),
                   number(static_cast<double>(row.summary.max_receive_bytes) / (1 << 20), 0),
                   number(row.plan_ms, 2), number(row.metadata_ms, 2),
                   std::to_string(row.violations)});
  }
  fmt::print("{}", table.to_string());
}

void print_json(const std::vector<Row>& rows, const Arguments& arguments) {
  Json list = Json::array();
  for (const Row& row : rows) {
    list.push_back({{"workload", row.workload},
                    {"max_over_mean_before", row.before},
                    {"max_over_mean", row.summary.max_over_mean},
                    {"qkv_mib", row.mib_qkv},
                    {"o_mib", row.mib_o},
                    {"share_of_original", row.share},
                    {"max_send_bytes", row.summary.max_send_bytes},
                    {"max_recv_bytes", row.summary.max_receive_bytes},
                    {"plan_ms", row.plan_ms},
                    {"metadata_ms", row.metadata_ms},
                    {"violations", row.violations}});
  }
  fmt::print("{}", canonical_json({{"commit", build_info::kCommit},
                                   {"build", build_info::kBuildType},
                                   {"compiler", build_info::kCompiler},
                                   {"cpu", cpu_name()},
                                   {"layout", arguments.options.layout},
                                   {"scheduler", arguments.options.scheduler},
                                   {"tolerance", arguments.tolerance},
                                   {"rounds", arguments.rounds},
                                   {"rows", list}}));
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app{"Evenness, bytes and time of plans, against the original's figures.", "plan"};
  app.add_option("workloads", arguments.workloads, "Workload files; default: all of --folder");
  app.add_option("--folder", arguments.folder)->capture_default_str();
  app.add_option("--layout", arguments.options.layout)->capture_default_str();
  app.add_option("--scheduler", arguments.options.scheduler)->capture_default_str();
  app.add_option("--tolerance", arguments.tolerance)
      ->check(CLI::Range(0.0, 10.0))
      ->capture_default_str();
  app.add_option("--rounds", arguments.rounds)->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_flag("--json", arguments.json, "For machines");
  app.footer("Example:  build/release/bench/plan --scheduler greedy --tolerance 0.05");
  CLI11_PARSE(app, argc, argv);

  if (arguments.workloads.empty()) {
    for (const Original& original : kOriginals) {
      arguments.workloads.push_back(fmt::format("{}/{}.json", arguments.folder, original.workload));
    }
  }
  pin_to_this_core();
  std::vector<Row> rows;
  for (const std::string& path : arguments.workloads) rows.push_back(measure(path, arguments));
  arguments.json ? print_json(rows, arguments) : print_table(rows, arguments);
  const bool valid =
      std::all_of(rows.begin(), rows.end(), [](const Row& row) { return row.violations == 0; });
  return valid ? 0 : 1;
}

}  // namespace
}  // namespace distca

int main(int argc, char** argv) {
  try {
    return distca::run(argc, argv);
  } catch (const distca::Error& error) {
    fmt::print(stderr, "bench/plan: error: {}\n", error.what());
    return error.exit_code();
  }
}
