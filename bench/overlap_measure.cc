#include "bench/overlap_measure.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <span>
#include <thread>
#include <utility>

#include "bench/core_time.h"
#include "bench/exchange_windows.h"
#include "bench/exchanges_alone.h"
#include "bench/lines.h"
#include "bench/namespaces.h"
#include "bench/one_byte_messages.h"
#include "bench/step_arms.h"
#include "bench/swapped_plan.h"
#include "distca/base/clock.h"
#include "distca/comm/collectives.h"
#include "distca/plan/exchange.h"
#include "distca/train/step.h"

namespace distca::bench {
namespace {

constexpr uint32_t kWireTag = 1;
constexpr std::chrono::milliseconds kIdle(200);

/// Tokens of a worker's nano-batch: where exchanges are to be the longer, less to compute.
int64_t tokens_of(ExchangeLength length) { return length == ExchangeLength::kShorter ? 1536 : 768; }

/// The longest share of an operation that an exchange is to take, or the shortest.
constexpr double kAimedShorter = 0.65, kAimedBetween = 1.1, kAimedLonger = 1.2;

double mean_of_ranks(Communicator& comm, double mine) {
  double sum = 0;
  for (const double value : all_gather(comm, mine, "a mean")) sum += value;
  return sum / comm.size();
}

/// Bytes a second in each direction, both at once.
double wire_rate(Communicator& comm, double mb_per_s) {
  constexpr int kMessages = 10;
  const auto bytes = static_cast<int64_t>(mb_per_s > 0 ? mb_per_s * 1e6 / 15 : 16e6);
  std::vector<std::byte> out(static_cast<size_t>(bytes)), in(out.size());
  const int peer = 1 - comm.rank();
  const Message send{.peer = peer, .tag = kWireTag, .data = out.data(), .bytes = bytes};
  const Message receive{.peer = peer, .tag = kWireTag, .data = in.data(), .bytes = bytes};
  double begin = 0;
  for (int i = 0; i <= kMessages; ++i) {  // the first fills the wire
    if (i == 1) begin = steady_seconds();
    comm.exchange({&send, 1}, {&receive, 1}, "measuring the wire")->wait();
  }
  return mean_of_ranks(comm, static_cast<double>(kMessages * bytes) / (steady_seconds() - begin));
}

/// One rank's part of a batch, under whichever schedule.
struct RankBatch {
  std::vector<NanoPart> parts;
  std::vector<LocalTokens> tokens;
};

RankBatch rank_batch(const SwappedBatch& batch, const LlamaConfig& model, int rank) {
  const Plan plan = swapped_plan(batch, model.shape().attention);
  const NanoPart part{attention_exchange(PlanIndex(plan), rank, model, {})};
  const LocalTokens tokens = made_up_tokens(
      plan.nano_batch, plan.layout.workers[static_cast<size_t>(rank)], model.vocab_size);
  return {.parts = std::vector<NanoPart>(kNanoBatches, part),
          .tokens = std::vector<LocalTokens>(kNanoBatches, tokens)};
}

Program program_of(Overlap overlap, const LlamaConfig& model, const RankBatch& batch) {
  return step_program(model, {.overlap = overlap}, /*holds_weights=*/true,
                      ProgramRequest::Kind::kTrain, batch.parts);
}

int64_t sent_bytes(const Program& program) {
  int64_t bytes = 0;
  for (const Op& op : program.ops) bytes += program.sends(op).bytes;
  return bytes;
}

/// Adds the means over a program's operations: of compute where `computed` says so, else of the
/// exchanges that wait one after another.
void set_means(const Program& program, const OpTimes& times, int played, bool computed,
               OpSeconds* seconds) {
  const auto count = count_ops(program);
  for (int kind = 0; kind < kNumOpKinds; ++kind) {
    if (communicates(static_cast<OpKind>(kind)) == computed) continue;
    for (int pass = 0; pass < 2; ++pass) {
      const int operations = count[static_cast<size_t>(kind)][static_cast<size_t>(pass)] * played;
      if (operations == 0) continue;
      (*seconds)[static_cast<size_t>(kind)][static_cast<size_t>(pass)] =
          times.of(static_cast<OpKind>(kind), static_cast<distca::Pass>(pass)) / operations;
    }
  }
}

/// What the wire alone needs for each exchange.
void set_wire_seconds(const Program& program, double bytes_per_s, OpSeconds* seconds) {
  for (const Op& op : program.ops) {
    if (communicates(op.kind)) {
      (*seconds)[static_cast<size_t>(op.kind)][static_cast<size_t>(op.pass)] =
          static_cast<double>(program.sends(op).bytes) / bytes_per_s;
    }
  }
}

/// How many times as long the exchanges should be.
double factor_to_aim(ExchangeLength length, const std::vector<ExchangeWindow>& windows) {
  double most = 0, least = std::numeric_limits<double>::infinity();
  for (const ExchangeWindow& window : windows) {
    most = std::max(most, window.share());
    least = std::min(least, window.over_longest());
  }
  if (length == ExchangeLength::kLonger) return kAimedLonger / least;
  return (length == ExchangeLength::kShorter ? kAimedShorter : kAimedBetween) / most;
}

}  // namespace

LlamaConfig overlap_model() {
  return {.vocab_size = 256,
          .hidden_size = 256,
          .intermediate_size = 256,
          .num_hidden_layers = 8,
          .num_attention_heads = 8,
          .num_key_value_heads = 2,
          .head_dim = 64};
}

/// Ways to play a step.
enum Arm : size_t { kBlockingArm, kOverlapArm, kPingPongArm, kAgainArm, kOneByteArm, kArms };
constexpr std::array<const char*, kArms> kArmNames{"blocking", "overlap", "ping-pong",
                                                   "ping-pong again", "ping-pong, one byte"};
constexpr std::array<Overlap, kArms> kArmOverlaps{
    Overlap::kNone, Overlap::kWithin, Overlap::kPingPong, Overlap::kPingPong, Overlap::kPingPong};

struct OverlapMeasurer::State {
  OverlapOptions options;
  Communicator& comm;
  OneByteMessages cuttable;
  Llama llama;
  std::vector<std::unique_ptr<Step>> steps;  // [arm]

  State(const OverlapOptions& options_in, Communicator& comm_in);

  void add_to(OpTimes* sum, const OpTimes& times);
  double step(Arm arm, const RankBatch& inputs, bool cut, OpTimes* times = nullptr);
  void warm_up(const RankBatch& inputs, std::span<const Arm> arms);
  SwappedBatch choose_batch(const OverlapSetting& setting, double wire_bytes_per_s);
  void play_rounds(const RankBatch& inputs, bool judged);
  void write_exchanges(const Program& program, const OpSeconds& seconds);
};

OverlapMeasurer::State::State(const OverlapOptions& options_in, Communicator& comm_in)
    : options(options_in),
      comm(comm_in),
      cuttable(comm_in),
      llama(options.model, /*seed=*/1, /*cuda_device=*/-1) {
  for (size_t arm = 0; arm < kArms; ++arm) {
    steps.push_back(std::make_unique<Step>(options.model, &llama, cuttable, StepOptions{}));
  }
}

/// From a barrier to the end of the slowest rank. Gradients are summed by nobody: they would travel
/// on the same wire. `cut`: messages of one byte. `times`: null, or where this rank's are added.
double OverlapMeasurer::State::step(Arm arm, const RankBatch& inputs, bool cut, OpTimes* times) {
  for (const at::Tensor& parameter : llama.parameters()) {
    if (parameter.grad().defined()) parameter.grad().zero_();
  }
  const StepInput input{program_of(kArmOverlaps[arm], options.model, inputs), inputs.tokens};
  cuttable.cut(cut);
  barrier(comm, "begin of a step");
  PlayedStep played{.begin_s = steady_seconds()};
  const StepResult result = steps[arm]->train(
      input, 1, [] {}, [] {});
  played.end_s = played.computed_s = steady_seconds();
  cuttable.cut(false);
  if (times != nullptr) add_to(times, result.times);
  return figures_of(all_gather(comm, played, "figures of a step")).seconds;
}

void OverlapMeasurer::State::add_to(OpTimes* sum, const OpTimes& times) {
  for (size_t kind = 0; kind < kNumOpKinds; ++kind) {
    for (size_t pass = 0; pass < 2; ++pass) {
      for (size_t part = 0; part < kNumOpParts; ++part)
        sum->seconds[kind][pass][part] += times.seconds[kind][pass][part];
    }
  }
}

/// Whole messages first: what is cut to one byte leaves finite numbers behind.
void OverlapMeasurer::State::warm_up(const RankBatch& inputs, std::span<const Arm> arms) {
  for (const Arm arm : arms) step(arm, inputs, /*cut=*/false);
}

/// So much swapped that the exchanges are as long beside what they run under as the setting wants.
SwappedBatch OverlapMeasurer::State::choose_batch(const OverlapSetting& setting,
                                                  double wire_bytes_per_s) {
  constexpr int kTries = 2;  // what is swapped changes what there is to attend
  constexpr int64_t kStep = 8, kLeast = 16;
  const int64_t tokens = tokens_of(setting.length);
  SwappedBatch batch{.home_tokens = tokens - tokens / 8, .swapped_tokens = tokens / 8};
  for (int i = 0; i < kTries; ++i) {
    const RankBatch inputs = rank_batch(batch, options.model, comm.rank());
    const Program program = program_of(Overlap::kPingPong, options.model, inputs);
    warm_up(inputs, std::array{kOneByteArm});
    OpTimes times;
    step(kOneByteArm, inputs, /*cut=*/true, &times);
    OpSeconds seconds{};
    set_means(program, times, 1, /*computed=*/true, &seconds);
    set_wire_seconds(program, wire_bytes_per_s, &seconds);
    const double factor = factor_to_aim(setting.length, exchange_windows(program, seconds));
    const double wanted =
        static_cast<double>(batch.swapped_tokens) * all_gather(comm, factor, "the factor")[0];
    batch.swapped_tokens =
        std::clamp(round_up(static_cast<int64_t>(wanted), kStep), kLeast,
                   setting.length == ExchangeLength::kShorter ? tokens / 2 : tokens);
    batch.home_tokens = tokens - batch.swapped_tokens;
  }
  return batch;
}

/// Each arm once a round, another one first each time; then the exchanges alone. Those that only
/// have to be shown rest in the later rounds.
void OverlapMeasurer::State::play_rounds(const RankBatch& inputs, bool judged) {
  ExchangesAlone alone(comm, program_of(Overlap::kNone, options.model, inputs));
  OpTimes computed, exchanged;
  const int rounds = judged ? options.rounds : options.shown_rounds;
  for (int round = 0; round < rounds; ++round) {
    std::vector<Arm> arms = {kPingPongArm, kAgainArm, kOneByteArm};
    if (round < options.shown_rounds) arms.insert(arms.end(), {kBlockingArm, kOverlapArm});
    std::ranges::rotate(arms, arms.begin() + round % static_cast<int>(arms.size()));
    Json steps = Json::object();
    for (const Arm arm : arms) {
      const bool cut = arm == kOneByteArm;
      steps[kArmNames[arm]] = step(arm, inputs, cut, cut ? &computed : nullptr);
    }
    Json line = {{"step_s", steps}};
    if (round < options.shown_rounds) {
      barrier(comm, "idle");
      const CoreTime idle = core_time_of([] { std::this_thread::sleep_for(kIdle); });
      barrier(comm, "exchanges alone");
      const CoreTime core = core_time_of([&] { alone.play_once(&exchanged); });
      line.update({{"alone_s", core.seconds},
                   {"idle_share", mean_of_ranks(comm, idle.taken_seconds / idle.seconds)},
                   {"used_s", mean_of_ranks(comm, core.taken_seconds)},
                   {"charged_s", mean_of_ranks(comm, core.process_seconds)}});
    }
    if (comm.rank() == 0) write_line("round", line);
  }
  const Program program = program_of(Overlap::kPingPong, options.model, inputs);
  OpSeconds seconds{};
  set_means(program, computed, rounds, /*computed=*/true, &seconds);
  set_means(program, exchanged, std::min(rounds, options.shown_rounds), /*computed=*/false,
            &seconds);
  if (comm.rank() == 0) write_exchanges(program, seconds);
}

void OverlapMeasurer::State::write_exchanges(const Program& program, const OpSeconds& seconds) {
  Json windows = Json::array();
  for (const ExchangeWindow& window : exchange_windows(program, seconds)) {
    windows.push_back({{"exchange", op_name(window.kind)},
                       {"pass", pass_name(window.pass)},
                       {"alone_s", window.exchange_s},
                       {"under_attention", window.under_attention},
                       {"under_s", window.under_s},
                       {"longest_s", window.longest_s}});
  }
  write_line("exchanges", {{"step_bytes", sent_bytes(program)}, {"windows", windows}});
}

OverlapMeasurer::OverlapMeasurer(const OverlapOptions& options, Communicator& comm)
    : state_(std::make_unique<State>(options, comm)) {}
OverlapMeasurer::~OverlapMeasurer() = default;

void OverlapMeasurer::measure(const OverlapSetting& setting) {
  State& s = *state_;
  limit_rate(setting.mb_per_s);
  const double wire_bytes_per_s = wire_rate(s.comm, setting.mb_per_s);
  const SwappedBatch batch = s.choose_batch(setting, wire_bytes_per_s);
  if (s.comm.rank() == 0) {
    write_line("setting", {{"name", setting.name()},
                           {"mb_per_s", setting.mb_per_s},
                           {"length", length_name(setting.length)},
                           {"judged", setting.judged},
                           {"tokens", batch.tokens()},
                           {"swapped_tokens", batch.swapped_tokens},
                           {"wire_bytes_per_s", wire_bytes_per_s}});
  }
  const RankBatch inputs = rank_batch(batch, s.options.model, s.comm.rank());
  s.warm_up(inputs, std::array{kBlockingArm, kOverlapArm, kPingPongArm, kAgainArm, kOneByteArm});
  s.play_rounds(inputs, setting.judged);
}

}  // namespace distca::bench
