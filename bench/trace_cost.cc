// What tracing costs a step of two workers: the same steps with events recorded, without, and
// without again. Without, the executor does a part of what it does with them, so the cost of
// tracing that is off lies below that of tracing that is on.
//   bench/report.py build/release/bench/trace_cost

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "bench/main.h"
#include "bench/step_arms.h"
#include "bench/worker_ranks.h"
#include "distca/base/clock.h"
#include "distca/program/program_testing.h"
#include "distca/runtime/executor_testing.h"

namespace distca::bench {
namespace {

/// Small operations: the more of them a second, the more events.
LlamaConfig small_model() {
  LlamaConfig model;
  model.vocab_size = 256;
  model.hidden_size = 128;
  model.intermediate_size = 352;
  model.num_hidden_layers = 8;
  model.num_attention_heads = 4;
  model.num_key_value_heads = 2;
  model.head_dim = 32;
  return model;
}

const BatchLengths kBatch = {{900, 124}, {128, 600, 296}};

/// What the executor itself takes for an operation, clocks and all: the least of many times.
double executor_us(bool recorded) {
  Program program;
  constexpr int kPairs = 500;
  for (int i = 0; i < kPairs; ++i) {
    testing::add_exchange(program, {.kind = OpKind::kDispatch, .layer = i, .nano_batch = 0},
                          {{1, 8}}, {{1, 8}});
    program.ops.push_back(
        Op{.kind = OpKind::kCoreAttention, .layer = i, .nano_batch = 0, .wait_for = {2 * i}});
  }
  double least_s = 1e9;
  for (int turn = 0; turn < 30; ++turn) {
    IdlePlayer player;
    OpTimes times;
    TraceRecorder recorder;
    const double begin_s = thread_processor_seconds();
    play(program, player, &times, recorded ? &recorder : nullptr);
    least_s = std::min(least_s, thread_processor_seconds() - begin_s);
  }
  return 1e6 * least_s / (2 * kPairs);
}

void measure(Communicator& comm, int rounds) {
  StepPlayer player(small_model(), 1, comm);
  TraceRecorder recorder;
  std::array<size_t, 3> steps{};  // off, off again, on
  for (size_t& step : steps)
    step = player.add({.name = "ping-pong", .plan = {}, .step = {.overlap = Overlap::kPingPong}});
  player.set_recorder(steps[2], &recorder);
  std::vector<ArmRun> arms;
  for (const size_t step : steps)
    arms.push_back([&player, step](int) { return player.run(step, kBatch); });
  const auto figures = interleaved_steps(arms, rounds);
  if (comm.rank() != 0) return;
  write_header("trace_cost", {{"rounds", rounds}});
  for (size_t round = 0; round < figures[0].size(); ++round) {
    write_line("round", {{"off_s", figures[0][round].seconds},
                         {"off_again_s", figures[1][round].seconds},
                         {"on_s", figures[2][round].seconds}});
  }
  const size_t events = recorder.events().size() / static_cast<size_t>(rounds + 1);
  write_line("executor",
             {{"events", events}, {"off_us", executor_us(false)}, {"on_us", executor_us(true)}});
}

int run(int argc, char** argv) {
  int rounds = 101;
  CLI::App app{"What tracing costs a training step.", "trace_cost"};
  app.add_option("--rounds", rounds)->check(CLI::Range(1, 100000))->capture_default_str();
  app.footer(
      "Alone on the machine. Example:  bench/report.py build/release/bench/trace_cost --rounds "
      "200");
  if (!parse_options(app, argc, argv)) return 0;
  return run_worker_ranks({.program = "bench/trace_cost", .comm = {.grace_s = 1}},
                          {argv, static_cast<size_t>(argc)},
                          [&](Communicator& comm) { measure(comm, rounds); });
}

}  // namespace
}  // namespace distca::bench

int main(int argc, char** argv) {
  return distca::bench::run_benchmark("bench/trace_cost",
                                      [&] { return distca::bench::run(argc, argv); });
}
