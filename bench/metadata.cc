// What every rank needs to know of a plan, at many servers: time, entries in all and memory,
// against servers squared; the time of the validator, which training runs on every plan; and that
// of one rank's program of two such plans, made and validated every step, and of all ranks'
// programs, validated once, before the first step. A made batch: the lengths of the workload of 512
// servers, repeated and shuffled. Times: best of --rounds on one pinned thread; of all ranks'
// programs one round.
//   bench/report.py build/release/bench/metadata

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "bench/main.h"
#include "bench/timing.h"
#include "distca/base/error.h"
#include "distca/base/random.h"
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
  PlanOptions options;
  int rounds = 5;
};

/// servers x tokens_per_rank tokens: the workload's lengths, again and again, shuffled.
NanoBatch made_batch(const Workload& workload, int servers) {
  std::vector<int64_t> lengths;
  Random random(1);
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

/// A training step of two nano-batches under this plan, as one rank plays it, but for the sum of
/// gradients, which does not depend on the plan.
Program program_of(const PlanIndex& index, int rank, const AttentionShape& shape) {
  const NanoPart part{.exchange = std::make_shared<const AttentionExchange>(
                          make_attention_exchange(index.exchange(rank), shape, {}))};
  return build_program({.nano_batches = {part, part},
                        .model = {.num_layers = kLayers,
                                  .hidden_size = 4096,
                                  .intermediate_size = 14336 / 8,
                                  .attention = shape}});
}

size_t measure_programs(const Plan& plan, int servers, int rounds, Json* row) {
  const PlanIndex index(plan);
  const int rank = servers / 2;
  Program program;
  size_t violations = 0;
  (*row)["program_ms"] =
      bench::best_ms(rounds, [&] { program = program_of(index, rank, plan.shape); });
  (*row)["validate_program_ms"] =
      bench::best_ms(rounds, [&] { violations += validate(program).size(); });
  if (servers > kMostChecked) return violations;
  std::vector<Program> programs;
  for (int other = 0; other < servers; ++other) {
    programs.push_back(program_of(index, other, plan.shape));
  }
  (*row)["validate_all_ms"] = bench::best_ms(1, [&] { violations += validate(programs).size(); });
  return violations;
}

/// messages: of all ranks, each direction of a pair counted once. entries: row ranges in messages,
/// tasks and their key blocks, of all ranks. MiB: growth of the resident set while the plan is
/// made, and while all ranks' exchanges are kept. metadata_ms: index and all ranks' exchanges;
/// backward mirrors forward. one_rank_ms: index and the exchange of one rank, what a rank does.
Json measure(const Workload& workload, int servers, const Arguments& arguments) {
  const PlanRequest request{.nano_batch = made_batch(workload, servers),
                            .cluster = Cluster::in_place(servers),
                            .shape = {.num_heads = 4, .num_kv_heads = 1},  // Llama-8B, one of 8
                            .options = arguments.options};
  const PeakMemory plan_memory;
  Plan plan = make_plan(request);
  Json row{{"servers", servers}, {"plan_mib", plan_memory.growth_mib()}};
  row["plan_ms"] = bench::best_ms(arguments.rounds, [&] { plan = make_plan(request); });
  row["tasks"] = plan.tasks.size();
  {
    const PeakMemory memory;
    std::vector<RankExchange> exchanges;
    const PlanIndex index(plan);
    for (int rank = 0; rank < servers; ++rank) exchanges.push_back(index.exchange(rank));
    row["metadata_mib"] = memory.growth_mib();
    int64_t messages = 0, entries = 0, largest = 0;
    for (const RankExchange& exchange : exchanges) {
      const int64_t of_rank = entries_of(exchange);
      messages += static_cast<int64_t>(exchange.sends.size());
      entries += of_rank;
      largest = std::max(largest, of_rank);
    }
    row.update({{"messages", messages}, {"entries", entries}, {"largest_rank_entries", largest}});
  }
  row["metadata_ms"] = bench::best_ms(arguments.rounds, [&] {
    const PlanIndex index(plan);
    for (int rank = 0; rank < servers; ++rank) index.exchange(rank);
  });
  row["one_rank_ms"] =
      bench::best_ms(arguments.rounds, [&] { PlanIndex(plan).exchange(servers / 2); });
  const ValidateOptions checks = checks_of(find_scheduler(plan.options.scheduler));
  size_t violations = 0;
  row["validate_ms"] =
      bench::best_ms(arguments.rounds, [&] { violations = validate(plan, checks).size(); });
  violations += measure_programs(plan, servers, arguments.rounds, &row);
  row["violations"] = violations;
  return row;
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app{"Time and memory of plans and of all ranks' exchanges at many servers.", "metadata"};
  app.option_defaults()->always_capture_default();
  app.add_option("--servers", arguments.servers, "How many; several, ascending")
      ->check(CLI::Range(1, 8192));
  app.add_option("--scheduler", arguments.options.scheduler);
  app.add_flag("--split-kv", arguments.options.split_kv);
  app.add_flag("--spread", arguments.options.spread);
  app.add_option("--rounds", arguments.rounds)->check(CLI::Range(1, 1000));
  app.footer("Example:  bench/report.py build/release/bench/metadata --servers 64 512 4096");
  if (!bench::parse_options(app, argc, argv)) return 0;

  bench::pin_to_this_core();

  const Workload workload = read_workload(DISTCA_WORKLOADS "/pretrain_512x128k_0.json");
  bench::write_header("metadata",
                      {{"scheduler", arguments.options.scheduler}, {"rounds", arguments.rounds}});
  for (const int servers : arguments.servers)
    bench::write_line("row", measure(workload, servers, arguments));
  return 0;
}

}  // namespace
}  // namespace distca

int main(int argc, char** argv) {
  return distca::bench::run_benchmark("bench/metadata", [&] { return distca::run(argc, argv); });
}
