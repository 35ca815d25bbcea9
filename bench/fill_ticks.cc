// The messages of a pipeline's fill and drain ticks, compared with those of a normal tick, in which
// every stage works. In fill and drain ticks the ranks that hold tokens give most of their
// attention away, and one of them may become the bottleneck of the exchange. Nano-batches of one
// stage: workload files, and sampled ones. Planning times are processor times.
//   bench/report.py build/release/bench/fill_ticks

#include <CLI/CLI.hpp>

#include <filesystem>
#include <string>
#include <vector>

#include "bench/main.h"
#include "bench/timing.h"
#include "distca/base/clock.h"
#include "distca/cost/finish_time.h"
#include "distca/plan/pipeline/pipeline_plan.h"
#include "distca/plan/plan_batch_input.h"
#include "distca/plan/plan_summary.h"
#include "distca/plan/sample_workloads.h"
#include "distca/plan/validate.h"

namespace distca::bench {
namespace {

constexpr AttentionShape kShape{.num_heads = 4, .num_kv_heads = 1};  // Llama-8B at TP 8
constexpr double kLongMs = 50;                                       // planned once

struct Arguments {
  std::string folder = DISTCA_WORKLOADS;  // in the source folder
  std::string lengths = DISTCA_LENGTHS;   // likewise
  std::vector<int> stages = {2, 4};
  std::vector<double> shares = {0.25, 0.5, 0.6};  // attention's share of all work, whole-even
  int sampled = 3;
  uint64_t seed = 42;
  int rounds = 5;
  bool spread = true;
};

/// Nano-batches that stages of a pipeline have in flight.
struct Batch {
  std::string name;
  bool sampled = false;
  int servers = 1;                   // servers of one stage
  std::vector<NanoBatch> in_flight;  // [most stages]
};

/// A way to even out ranks: attention alone (share 0), or whole at this share of attention.
void set_speeds(PipelineRequest& request, double share) {
  request.speeds.clear();
  request.balance_target = share > 0 ? BalanceTarget::kWhole : BalanceTarget::kAttention;
  double tokens = 0, pairs = 0;
  for (const NanoBatch& nano_batch : request.nano_batches) {
    for (const Document& document : nano_batch.documents) {
      const auto length = static_cast<double>(document.length);
      tokens += length;
      pairs += length * (length + 1) / 2;
    }
  }
  constexpr int64_t kLinearPs = 3'000'000;  // linear work of a token, forward and backward
  const double of_linear = share > 0 ? share / (1 - share) : 1;
  const double attention = tokens * kLinearPs / 3 * of_linear * 3.5;
  request.speeds.assign(request.grid.num_ranks(),
                        {.linear_ps_per_token = kLinearPs,
                         .attention_ps_per_kload =
                             std::max<int64_t>(1, static_cast<int64_t>(1000 * attention / pairs))});
}

/// How a tick is planned.
struct Way {
  std::string name;
  FillTicks fill_ticks = FillTicks::kExact;
  int64_t tolerance_ppm = 20'000;  // relative to a fill tick's length
  bool spread = false;             // in all ticks, and in the layout
};

const std::vector<Way>& ways() {
  static const std::vector<Way> all = {{.name = "exact"},
                                       {.name = "exact, 5 %", .tolerance_ppm = 50'000},
                                       {.name = "spread", .fill_ticks = FillTicks::kSpread},
                                       {.name = "spread everywhere", .spread = true}};
  return all;
}

PipelineRequest request_of(const Batch& batch, int stages, const Way& way) {
  PipelineRequest request;
  request.grid = {.stages = stages, .replicas = batch.servers};
  request.slots = 1;
  request.shape = kShape;
  request.options.spread = way.spread;
  request.fill_ticks = way.fill_ticks;
  request.fill_tolerance_ppm = way.tolerance_ppm;
  for (int stage = 0; stage < stages; ++stage) {
    const NanoBatch& nano_batch = batch.in_flight[stage % batch.in_flight.size()];
    request.nano_batches.push_back(nano_batch);
    request.homes.push_back(
        make_layout({nano_batch, Cluster::in_place(batch.servers), kShape, request.options}));
  }
  return request;
}

/// Plans the tick in which the first `working` stages work, and writes its figures.
void measure_tick(const PipelineRequest& request, int working, const Batch& batch, double share,
                  const std::string& way, int rounds) {
  std::vector<int> nano_batches;
  for (int stage = 0; stage < request.grid.stages; ++stage)
    nano_batches.push_back(stage < working ? stage : -1);
  Plan plan;
  double plan_ms = 0;
  for (int round = 0; round < rounds && plan_ms < kLongMs; ++round) {
    const double start = thread_processor_seconds();
    plan = make_slot_plan(request, nano_batches, Pass::kForward);
    const double ms = (thread_processor_seconds() - start) * 1e3;
    plan_ms = round == 0 ? ms : std::min(plan_ms, ms);
  }
  ValidateOptions checks;
  checks.even_tokens = false;
  const PlanSummary summary = summarize(plan);
  const std::vector<RankWork> work = slot_work(request, nano_batches, Pass::kForward);
  double longest = 0;
  int64_t load = 0;
  for (size_t rank = 0; rank < work.size(); ++rank) {
    longest =
        std::max(longest, linear_ps(work[rank]) + attention_ps(work[rank], plan.load[rank].pairs));
    load += plan.load[rank].pairs;
  }
  const auto least = static_cast<double>(least_ps(work, BalanceTarget::kWhole, load));
  write_line("tick", {{"of", batch.name},
                      {"sampled", batch.sampled},
                      {"servers", batch.servers},
                      {"stages", request.grid.stages},
                      {"working", working},
                      {"attention_share", share},
                      {"way", way},
                      {"max_send_bytes", summary.max_send_bytes},
                      {"max_receive_bytes", summary.max_receive_bytes},
                      {"bytes", summary.qkv_bytes + summary.o_bytes},
                      {"max_over_share", summary.max_over_share},
                      {"over_least", longest / least},
                      {"tasks", plan.tasks.size()},
                      {"plan_ms", plan_ms},
                      {"violations", validate(plan, checks).size()}});
}

void measure_batch(const Batch& batch, int stages, const Arguments& arguments) {
  std::vector<double> shares = arguments.shares;
  shares.insert(shares.begin(), 0);
  for (const Way& way : ways()) {
    if (!arguments.spread && (way.spread || way.fill_ticks == FillTicks::kSpread)) continue;
    PipelineRequest request = request_of(batch, stages, way);
    for (const double share : shares) {
      set_speeds(request, share);
      const bool all = way.name == "exact" || way.spread;
      for (int working = 1; working <= (all ? stages : stages - 1); ++working)
        measure_tick(request, working, batch, share, way.name, arguments.rounds);
    }
  }
}

void measure_workloads(const Arguments& arguments) {
  for (const char* name :
       {"pretrain_8x128k_0", "pretrain_64x128k_1", "pretrain_64x128k_2", "prolong_64x128k_0"}) {
    const Workload workload = read_workload(fmt::format("{}/{}.json", arguments.folder, name));
    for (const int stages : arguments.stages)
      measure_batch({name, false, workload.ranks, {workload.nano_batch}}, stages, arguments);
  }
}

/// Nano-batches of both sources for stages of 8 servers, and for pipelines of 64 in all.
void measure_samples(const Arguments& arguments) {
  const std::filesystem::path folder = arguments.lengths;
  if (arguments.sampled == 0) return;
  for (const auto& [kind, source] :
       {std::pair{SampleKind::kPretrain, "pretrain"}, std::pair{SampleKind::kProlong, "prolong"}}) {
    const std::vector<int64_t> lengths =
        read_lengths(folder / fmt::format("lengths_{}.json", source));
    for (const int stages : arguments.stages) {
      for (const int servers : {8, 64 / stages}) {
        const std::vector<Workload> workloads =
            sample_workloads(lengths, {.kind = kind,
                                       .count = arguments.sampled * stages,
                                       .ranks = servers,
                                       .seed = arguments.seed});
        for (int i = 0; i < arguments.sampled; ++i) {
          Batch batch{fmt::format("{} sample {}", source, i), true, servers, {}};
          for (int stage = 0; stage < stages; ++stage)
            batch.in_flight.push_back(workloads[i * stages + stage].nano_batch);
          measure_batch(batch, stages, arguments);
        }
      }
    }
  }
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app{"What fill and drain ticks of a pipeline send.", "fill_ticks"};
  app.option_defaults()->always_capture_default();
  app.add_option("--folder", arguments.folder);
  app.add_option("--lengths", arguments.lengths,
                 "Folder of lengths_pretrain.json and lengths_prolong.json")
      ->check(CLI::ExistingDirectory);
  app.add_option("--stages", arguments.stages)->delimiter(',')->check(CLI::Range(2, 8));
  app.add_option("--shares", arguments.shares,
                 "Of attention in a stage's work, for whole-even ticks")
      ->delimiter(',')
      ->check(CLI::Range(0.01, 0.99));
  app.add_option("--sampled", arguments.sampled,
                 "Sampled pipelines of each source and size; 0: none")
      ->check(CLI::Range(0, 1000));
  app.add_option("--seed", arguments.seed, "Of the sampled ones");
  app.add_option("--rounds", arguments.rounds)->check(CLI::Range(1, 1000));
  app.add_option("--spread", arguments.spread, "Whether to measure spread, which takes longest");
  app.footer("Example:  bench/report.py build/release/bench/fill_ticks");
  if (!parse_options(app, argc, argv)) return 0;
  pin_to_this_core();
  write_header(
      "fill_ticks",
      {{"rounds", arguments.rounds}, {"seed", arguments.seed}, {"sampled", arguments.sampled}});
  measure_workloads(arguments);
  measure_samples(arguments);
  return 0;
}

}  // namespace
}  // namespace distca::bench

int main(int argc, char** argv) {
  return distca::bench::run_benchmark("bench/fill_ticks",
                                      [&] { return distca::bench::run(argc, argv); });
}
