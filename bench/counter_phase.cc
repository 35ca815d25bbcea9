// Measures what ranks wait for messages within a server: two ranks that divide the matrices of
// layers, with a slow wire between them, play ping-pong in turn, where each message is waited for
// at once, and in counter-phase, with the executor, processes and messages of training. Operations
// sleep their prices. As root, with iproute2:
//   bench/report.py build/release/bench/counter_phase
// Lines: the setting and one a round, in seconds.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/main.h"
#include "bench/namespaces.h"
#include "bench/one_byte_messages.h"
#include "bench/overlap_measure.h"
#include "bench/paced_player.h"
#include "bench/worker_ranks.h"
#include "distca/base/error.h"
#include "distca/comm/collectives.h"
#include "distca/plan/exchange.h"
#include "distca/plan/plan.h"
#include "distca/program/program_builder.h"

namespace distca::bench {
namespace {

constexpr int kSkipped = 77;  // exit code of a skipped test for ctest and automake

struct Arguments {
  int rounds = 15;
  double mb_per_s = 25;
  double attention_ms = 60, linear_ms = 80;  // a layer and nano-batch in forward
  int64_t tokens = 4096, hidden = 32;
  int layers = 3;
};

constexpr AttentionShape kShape{
    .num_heads = 1, .num_kv_heads = 1, .head_dim_qk = 8, .head_dim_v = 8};

Program program_of(const Arguments& arguments, int rank, Program (*build)(const ProgramRequest&)) {
  const Plan plan =
      make_plan({.nano_batch = NanoBatch::from_lengths(
                     {arguments.tokens / 2, arguments.tokens / 4, arguments.tokens / 4}),
                 .cluster = Cluster::in_place(1),
                 .shape = kShape});
  const NanoPart part{std::make_shared<const AttentionExchange>(
      make_attention_exchange(PlanIndex(plan).exchange(0), kShape, {}))};
  ProgramRequest request{.tensor = {2, rank}, .nano_batches = {part, part}, .least_share_pairs = 1};
  request.model = {.num_layers = arguments.layers,
                   .hidden_size = arguments.hidden,
                   .intermediate_size = arguments.hidden,
                   .attention = kShape};
  return build(request);
}

/// Prices by FLOPs, so that a layer of a nano-batch takes as long as is wanted.
class Prices {
 public:
  Prices(const Arguments& arguments, const Program& program) {
    double attention = 0, linear = 0;
    for (const Op& op : program.ops) {
      if (op.pass != Pass::kForward || op.nano_batch != 0 || op.layer != 0) continue;
      (op.kind == OpKind::kCoreAttention ? attention : linear) += op.flops;
    }
    attention_s_ = arguments.attention_ms * 1e-3 / attention;
    linear_s_ = arguments.linear_ms * 1e-3 / linear;
  }
  double operator()(const Op& op) const {
    if (op.layer < 0) return 0;
    return op.flops * (op.kind == OpKind::kCoreAttention ? attention_s_ : linear_s_);
  }

 private:
  double attention_s_, linear_s_;
};

enum Arm : size_t { kInTurn, kCounterPhase, kAgain, kInTurnOneByte, kOneByte, kArms };
constexpr std::array<const char*, kArms> kArmNames{"in turn", "counter-phase",
                                                   "counter-phase again", "in turn, one byte",
                                                   "counter-phase, one byte"};

void measure(const Arguments& arguments, Communicator& comm) {
  const Program in_turn = program_of(arguments, comm.rank(), build_in_turn),
                counter_phase = program_of(arguments, comm.rank(), build_counter_phase);
  limit_rate(arguments.mb_per_s);
  const double rate = wire_rate(comm, arguments.mb_per_s);
  OneByteMessages cuttable(comm);
  PacedPlayer player(cuttable);
  const Prices prices(arguments, in_turn);
  double busy_s = 0, wire_s = 0;
  for (const Op& op : in_turn.ops) {
    busy_s += op.stream == Stream::kCompute ? prices(op) : 0;
    wire_s += static_cast<double>(in_turn.sends(op).bytes) / rate;
  }
  const auto say = [&](const char* line, Json values) {
    if (comm.rank() == 0) write_line(line, std::move(values));
  };
  say("setting", {{"wire_bytes_per_s", rate}, {"busy_s", busy_s}, {"wire_s", wire_s}});
  for (int round = 0; round < arguments.rounds; ++round) {
    std::vector<size_t> turns = {kInTurn, kCounterPhase, kAgain, kInTurnOneByte, kOneByte};
    std::ranges::rotate(turns, turns.begin() + round % kArms);
    Json steps = Json::object();
    for (const size_t arm : turns) {
      cuttable.cut(arm == kInTurnOneByte || arm == kOneByte);
      const bool turn = arm == kInTurn || arm == kInTurnOneByte;
      const auto ranks =
          all_gather(comm, player.play(turn ? in_turn : counter_phase, prices), "a step");
      steps[kArmNames[arm]] =
          std::max(ranks[0].end_s, ranks[1].end_s) - std::min(ranks[0].begin_s, ranks[1].begin_s);
    }
    say("round", {{"step_s", steps}});
  }
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app{"What counter-phase hides of the messages in a server, over a slow wire.",
               "counter_phase"};
  app.option_defaults()->always_capture_default();
  app.add_option("--rounds", arguments.rounds)->check(CLI::Range(1, 1000));
  app.add_option("--rate", arguments.mb_per_s, "MB/s of each direction")
      ->check(CLI::Range(1.0, 1e5));
  app.add_option("--attention-ms", arguments.attention_ms)->check(CLI::Range(1.0, 1e4));
  app.add_option("--linear-ms", arguments.linear_ms)->check(CLI::Range(1.0, 1e4));
  app.add_option("--tokens", arguments.tokens)->check(CLI::Range(1024, 1 << 20));
  app.add_option("--hidden", arguments.hidden)->check(CLI::Range(8, 1 << 14));
  app.add_option("--layers", arguments.layers)->check(CLI::Range(1, 100));
  app.footer("As root. Exit code 77, with the reason, where it cannot run.");
  if (!parse_options(app, argc, argv)) return 0;
  WorkerRanks ranks{.program = "bench/counter_phase", .comm = {.grace_s = 1}};
  std::optional<NamespacePair> namespaces;
  if (!is_worker_rank()) {
    try {
      ranks.entering = namespaces.emplace().entering();
    } catch (const Error& error) {
      fmt::print(stderr, "skipped: needs root and iproute2: {}\n", error.what());
      return kSkipped;
    }
  }
  return run_worker_ranks(
      ranks, std::span(argv, static_cast<size_t>(argc)), [&](Communicator& comm) {
        if (comm.rank() == 0)
          write_header("counter_phase", {{"rounds", arguments.rounds},
                                         {"tokens", arguments.tokens},
                                         {"hidden", arguments.hidden},
                                         {"layers", arguments.layers},
                                         {"attention_ms", arguments.attention_ms},
                                         {"linear_ms", arguments.linear_ms}});
        measure(arguments, comm);
      });
}

}  // namespace
}  // namespace distca::bench

int main(int argc, char** argv) {
  return distca::bench::run_benchmark("bench/counter_phase",
                                      [&] { return distca::bench::run(argc, argv); });
}
