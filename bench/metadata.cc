// What every rank needs to know of a plan, at many servers: time, entries in all and memory,
// against servers squared; the time of the validator, which training runs on every plan; and that
// of one rank's program of two such plans, made and validated every step, and of all ranks'
// programs, validated once, before the first step. A made batch: the lengths of the workload of 512
// servers, repeated and shuffled. Times: best of --rounds on one pinned thread; of all ranks'
// programs one round.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "bench/program.h"
#include "bench/timing.h"
#include "distca/base/build_info.h"
#include "distca/base/error.h"
#include "distca/base/json.h"
#include "distca/base/random.h"
#include "distca/base/text.h"
#include "distca/plan/exchange.h"
#include "distca/plan/plan_batch_input.h"
#include "distca/plan/scheduler.h"
#include "distca/program/overlap.h"
#include "distca/program/validate.h"

namespace distca {
namespace {

constexpr int kLayers = 32;         // of programs
constexpr int kMostChecked = 1024;  // servers of which all programs are made

struct Arguments {
  std::vector<int> servers = {8, 64, 512, 4096};
  std::string workload = DISTCA_WORKLOADS "/pretrain_512x128k_0.json";
  PlanOptions options;
  uint64_t seed = 1;
  int rounds = 5;
  bool json = false;
};

struct Row {
  int servers = 0;
  size_t tasks = 0;
  int64_t messages = 0;     // of all ranks, each direction of a pair counted once
  int64_t entries = 0;      // row ranges in messages, tasks and their key blocks, of all ranks
  double largest_rank = 0;  // entries of the rank that has most
  double plan_ms = 0;
  double metadata_ms = 0;  // index and all ranks' exchanges; backward mirrors forward
  double one_rank_ms = 0;  // index and the exchange of one rank: what a rank does
  double validate_ms = 0;
  double program_ms = 0;           // of one rank: messages, tasks and operations
  double validate_program_ms = 0;  // of one rank
  double validate_all_ms = 0;      // of all ranks together; 0 beyond kMostChecked servers
  double plan_mib = 0;             // growth of the resident set while the plan is made
  double metadata_mib = 0;         // and while all ranks' exchanges are kept
  size_t violations = 0;
};

/// servers x tokens_per_rank tokens: the workload's lengths, again and again, shuffled.
NanoBatch made_batch(const Workload& workload, int servers, uint64_t seed) {
  std::vector<int64_t> lengths;
  Random random(seed);
  for (int64_t left = workload.tokens_per_rank * servers; left > 0;) {
    std::vector<int64_t> again;
    for (const Document& document : workload.nano_batch.documents) again.push_back(document.length);
    random.shuffle(std::span(again));
    for (size_t i = 0; i < again.size() && left > 0; ++i) {
      lengths.push_back(std::min(again[i], left));
      left -= lengths.back();
    }
  }
  return NanoBatch::from_lengths(lengths);
}

/// Kept by the process since the peak was forgotten last.
class PeakMemory {
 public:
  PeakMemory() {
    std::ofstream("/proc/self/clear_refs") << 5;  // VmHWM = VmRSS
    begin_ = field("VmRSS:");
  }
  double growth_mib() const { return (field("VmHWM:") - begin_) / 1024; }

 private:
  static double field(const std::string& name) {
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;) {
      double kib = 0;
      if (word == name && status >> kib) return kib;
    }
    throw Error(ErrorKind::kData, "/proc/self/status has no {}", name);
  }
  double begin_ = 0;
};

int64_t entries_of(const RankExchange& exchange) {
  size_t entries = exchange.tasks.size();
  for (const auto* messages : {&exchange.sends, &exchange.receives}) {
    for (const PeerTransfer& message : *messages) entries += message.q.size() + message.kv.size();
  }
  for (const ServerTask& task : exchange.tasks) entries += task.kv.size();
  return static_cast<int64_t>(entries);
}

/// A training step of two nano-batches under this plan, as one rank plays it.
Program program_of(const PlanIndex& index, int rank, const AttentionShape& shape) {
  const NanoPart part{.exchange = std::make_shared<const AttentionExchange>(
                          make_attention_exchange(index.exchange(rank), shape, {}))};
  return build_program({.nano_batches = {part, part},
                        .model = {.num_layers = kLayers,
                                  .hidden_size = 4096,
                                  .intermediate_size = 14336 / 8,
                                  .attention = shape}});
}

void measure_programs(const Plan& plan, int rounds, Row* row) {
  const PlanIndex index(plan);
  const int rank = row->servers / 2;
  Program program;
  row->program_ms = bench::best_ms(rounds, [&] { program = program_of(index, rank, plan.shape); });
  row->validate_program_ms =
      bench::best_ms(rounds, [&] { row->violations += validate(program).size(); });
  if (row->servers > kMostChecked) return;
  std::vector<Program> programs;
  for (int other = 0; other < row->servers; ++other) {
    programs.push_back(program_of(index, other, plan.shape));
  }
  row->validate_all_ms = bench::best_ms(1, [&] { row->violations += validate(programs).size(); });
}

Row measure(const Workload& workload, int servers, const Arguments& arguments) {
  const PlanRequest request{.nano_batch = made_batch(workload, servers, arguments.seed),
                            .cluster = Cluster::in_place(servers),
                            .shape = {.num_heads = 4, .num_kv_heads = 1},  // Llama-8B, one of 8
                            .options = arguments.options};
  Row row{.servers = servers};
  const PeakMemory plan_memory;
  Plan plan = make_plan(request);
  row.plan_mib = plan_memory.growth_mib();
  row.plan_ms = bench::best_ms(arguments.rounds, [&] { plan = make_plan(request); });
  row.tasks = plan.tasks.size();
  {
    const PeakMemory memory;
    std::vector<RankExchange> exchanges;
    const PlanIndex index(plan);
    for (int rank = 0; rank < servers; ++rank) exchanges.push_back(index.exchange(rank));
    row.metadata_mib = memory.growth_mib();
    for (const RankExchange& exchange : exchanges) {
      const int64_t entries = entries_of(exchange);
      row.messages += static_cast<int64_t>(exchange.sends.size());
      row.entries += entries;
      row.largest_rank = std::max(row.largest_rank, static_cast<double>(entries));
    }
  }
  row.metadata_ms = bench::best_ms(arguments.rounds, [&] {
    const PlanIndex index(plan);
    for (int rank = 0; rank < servers; ++rank) index.exchange(rank);
  });
  row.one_rank_ms =
      bench::best_ms(arguments.rounds, [&] { PlanIndex(plan).exchange(servers / 2); });
  const ValidateOptions checks = checks_of(find_scheduler(plan.options.scheduler));
  row.validate_ms =
      bench::best_ms(arguments.rounds, [&] { row.violations = validate(plan, checks).size(); });
  measure_programs(plan, arguments.rounds, &row);
  return row;
}

double share_of_square(const Row& row) {
  return static_cast<double>(row.entries) / (static_cast<double>(row.servers) * row.servers);
}

void print_table(const std::vector<Row>& rows, const Arguments& arguments) {
  namespace build = build_info;
  fmt::print("metadata: scheduler {}; best of {} on one pinned thread\ncommit {}, {} build, {}\n\n",
             arguments.options.scheduler, arguments.rounds, build::kCommit, build::kBuildType,
             build::kCompiler);
  Table table({"servers", "tasks", "messages", "entries", "of servers^2", "largest rank", "plan ms",
               "metadata ms", "one rank ms", "validate ms", "program ms", "validate it ms",
               "validate all ms", "plan MiB", "metadata MiB", "violations"});
  const auto number = [](double value, int digits) {
    return fmt::format("{:.{}f}", value, digits);
  };
  for (const Row& row : rows) {
    table.add_row(
        {std::to_string(row.servers), std::to_string(row.tasks), std::to_string(row.messages),
         std::to_string(row.entries), number(share_of_square(row), 3), number(row.largest_rank, 0),
         number(row.plan_ms, 2), number(row.metadata_ms, 2), number(row.one_rank_ms, 2),
         number(row.validate_ms, 2), number(row.program_ms, 2), number(row.validate_program_ms, 2),
         number(row.validate_all_ms, 0), number(row.plan_mib, 1), number(row.metadata_mib, 1),
         std::to_string(row.violations)});
  }
  fmt::print("{}", table.to_string());
}

void print_json(const std::vector<Row>& rows, const Arguments& arguments) {
  Json list = Json::array();
  for (const Row& row : rows) {
    list.push_back({{"servers", row.servers},
                    {"tasks", row.tasks},
                    {"messages", row.messages},
                    {"entries", row.entries},
                    {"entries_of_servers_squared", share_of_square(row)},
                    {"largest_rank_entries", row.largest_rank},
                    {"plan_ms", row.plan_ms},
                    {"metadata_ms", row.metadata_ms},
                    {"one_rank_ms", row.one_rank_ms},
                    {"validate_ms", row.validate_ms},
                    {"program_ms", row.program_ms},
                    {"validate_program_ms", row.validate_program_ms},
                    {"validate_all_ms", row.validate_all_ms},
                    {"plan_mib", row.plan_mib},
                    {"metadata_mib", row.metadata_mib},
                    {"violations", row.violations}});
  }
  fmt::print("{}", canonical_json({{"commit", build_info::kCommit},
                                   {"build", build_info::kBuildType},
                                   {"compiler", build_info::kCompiler},
                                   {"scheduler", arguments.options.scheduler},
                                   {"layout", arguments.options.layout},
                                   {"rounds", arguments.rounds},
                                   {"rows", list}}));
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app{"Time and memory of plans and of all ranks' exchanges at many servers.", "metadata"};
  app.add_option("--servers", arguments.servers, "How many; several, ascending")
      ->check(CLI::Range(1, 8192))
      ->capture_default_str();
  app.add_option("--workload", arguments.workload, "Whose lengths are repeated")
      ->capture_default_str();
  app.add_option("--layout", arguments.options.layout, "Default: the scheduler's own");
  app.add_option("--scheduler", arguments.options.scheduler)->capture_default_str();
  app.add_flag("--split-kv", arguments.options.split_kv);
  app.add_flag("--spread", arguments.options.spread);
  app.add_option("--seed", arguments.seed, "Of the shuffle")->capture_default_str();
  app.add_option("--rounds", arguments.rounds)->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_flag("--json", arguments.json, "For machines");
  app.footer("Example:  build/release/bench/metadata --servers 64 512 4096");
  if (!bench::parse_options(app, argc, argv)) return 0;

  bench::pin_to_this_core();

  const Workload workload = read_workload(arguments.workload);
  std::vector<Row> rows;
  for (const int servers : arguments.servers) rows.push_back(measure(workload, servers, arguments));
  arguments.json ? print_json(rows, arguments) : print_table(rows, arguments);
  return std::all_of(rows.begin(), rows.end(), [](const Row& row) { return row.violations == 0; })
             ? 0
             : 1;
}

}  // namespace
}  // namespace distca

int main(int argc, char** argv) {
  return distca::bench::run_benchmark("bench/metadata", [&] { return distca::run(argc, argv); });
}
