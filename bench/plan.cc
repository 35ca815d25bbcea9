// Bytes that plans of the workloads send, over those of the released planner's plan, and how long
// planning and the exchanges of all ranks take on one core.
//   bench/report.py build/release/bench/plan
// Lines: of each workload the plan of the "released" planner, then one a "plan" of ours, with the
// best times of the rounds in milliseconds.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <utility>

#include "bench/cores.h"
#include "bench/main.h"
#include "distca/base/clock.h"
#include "distca/plan/exchange.h"
#include "distca/plan/plan_batch_input.h"
#include "distca/plan/plan_summary.h"

namespace distca::bench {
namespace {

constexpr const char* kWorkloads[] = {"pretrain_8x128k_0", "pretrain_64x128k_1",
                                      "pretrain_64x128k_2", "prolong_64x128k_0",
                                      "pretrain_512x128k_0"};

constexpr int64_t kReleasedTolerancePpm = 50'000;  // its example has it

const std::pair<const char*, PlanOptions> kWays[] = {
    {"sequential layout", {.layout = "sequential"}},
    {"whole context", {}},
    {"split-KV", {.split_kv = true}},
    {"spread", {.split_kv = true, .spread = true}}};

template <typename Work>
double best_ms(int rounds, const Work& work) {
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < rounds; ++round) {
    const Stopwatch watch;
    work();
    best = std::min(best, watch.seconds() * 1e3);
  }
  return best;
}

Json figures_of(const Plan& plan) {
  const PlanSummary summary = summarize(plan);
  return {{"max_over_mean", summary.max_over_mean},
          {"bytes", summary.qkv_bytes + summary.o_bytes},
          {"max_send_bytes", summary.max_send_bytes}};
}

/// For Llama-8B on one of 8 tensor-parallel ranks, bf16.
void measure(const char* name, int rounds) {
  const Workload workload = read_workload(fmt::format("{}/{}.json", DISTCA_WORKLOADS, name));
  PlanRequest request{
      .nano_batch = workload.nano_batch,
      .cluster = Cluster::in_place(workload.ranks),
      .shape = {.num_heads = 4, .num_kv_heads = 1},
      .options = {.scheduler = "greedy-original", .tolerance_ppm = kReleasedTolerancePpm}};
  write_line("released", {{"of", name}, {"figures", figures_of(make_plan(request))}});
  for (const auto& [way, options] : kWays) {
    request.options = options;
    const Plan plan = make_plan(request);
    const auto exchanges = [&] {
      const PlanIndex index(plan);
      for (int rank = 0; rank < workload.ranks; ++rank) index.exchange(rank);
    };
    write_line("plan", {{"of", name},
                        {"servers", workload.ranks},
                        {"way", way},
                        {"figures", figures_of(plan)},
                        {"plan_ms", best_ms(rounds, [&] { make_plan(request); })},
                        {"metadata_ms", best_ms(rounds, exchanges)}});
  }
}

int run(int argc, char** argv) {
  int rounds = 30;
  CLI::App app{"What plans send, and how long planning takes on one core.", "plan"};
  app.add_option("--rounds", rounds)->check(CLI::Range(1, 1000))->capture_default_str();
  if (!parse_options(app, argc, argv)) return 0;
  pin_to(sched_getcpu());
  write_header("plan", {{"rounds", rounds}});
  for (const char* name : kWorkloads) measure(name, rounds);
  return 0;
}

}  // namespace
}  // namespace distca::bench

int main(int argc, char** argv) {
  return distca::bench::run_benchmark("bench/plan", [&] { return distca::bench::run(argc, argv); });
}
