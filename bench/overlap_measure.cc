#include "bench/overlap_measure.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <limits>
#include <memory>
#include <thread>
#include <utility>

#include "bench/core_time.h"
#include "bench/exchange_windows.h"
#include "bench/exchanges_alone.h"
#include "bench/main.h"
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

double mean_of_ranks(Communicator& comm, double mine) {
  double sum = 0;
  for (const double value : all_gather(comm, mine, "a mean")) sum += value;
  return sum / comm.size();
}

double& at(OpSeconds& seconds, OpKind kind, distca::Pass pass) {
  return seconds[static_cast<size_t>(kind)][static_cast<size_t>(pass)];
}

}  // namespace

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

namespace {

/// Plays the exchanges alone and measures how much of a rank's core they take, compared with an
/// idle core (core_time.h): "alone_s", the seconds on this rank, and as means over the ranks
/// "idle_share", and in seconds "used_s" and "charged_s". Adds to `times`.
Json core_figures(ExchangesAlone& alone, Communicator& comm, OpTimes* times) {
  barrier(comm, "idle");
  const CoreTime idle = core_time_of([] { std::this_thread::sleep_for(kIdle); });
  barrier(comm, "exchanges alone");
  const CoreTime core = core_time_of([&] { alone.play_once(times); });
  return {{"alone_s", core.seconds},
          {"idle_share", mean_of_ranks(comm, idle.taken_seconds / idle.seconds)},
          {"used_s", mean_of_ranks(comm, core.taken_seconds)},
          {"charged_s", mean_of_ranks(comm, core.process_seconds)}};
}

/// One rank's part of a batch, under whichever overlap mode.
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

/// Adds the means over a program's operations, played `played` times: of compute where `computed`
/// says so, else of the exchanges that wait one after another.
void add_means(const Program& program, const OpTimes& times, int played, bool computed,
               OpSeconds* seconds) {
  OpSeconds operations{};
  for (const Op& op : program.ops) at(operations, op.kind, op.pass) += played;
  for (int i = 0; i < kNumOpKinds; ++i) {
    const auto kind = static_cast<OpKind>(i);
    if (communicates(kind) == computed) continue;
    for (const distca::Pass pass : {distca::Pass::kForward, distca::Pass::kBackward}) {
      if (const double number = at(operations, kind, pass); number > 0)
        at(*seconds, kind, pass) += times.of(kind, pass) / number;
    }
  }
}

/// Tokens of a worker's nano-batch: where exchanges are to be the longer, less to compute.
int64_t tokens_of(ExchangeLength length) { return length == ExchangeLength::kShorter ? 1536 : 768; }

/// The longest share of an operation that an exchange is to take, or the shortest.
constexpr double kAimedShorter = 0.65, kAimedBetween = 1.1, kAimedLonger = 1.2;

Program program_of(Overlap overlap, const LlamaConfig& model, const RankBatch& batch) {
  return step_program(model, {.overlap = overlap}, /*holds_weights=*/true,
                      ProgramRequest::Kind::kTrain, batch.parts);
}

int64_t sent_bytes(const Program& program) {
  int64_t bytes = 0;
  for (const Op& op : program.ops) bytes += program.sends(op).bytes;
  return bytes;
}

/// Sets the time that the wire alone needs for each exchange.
void set_wire_seconds(const Program& program, double bytes_per_s, OpSeconds* seconds) {
  for (const Op& op : program.ops) {
    if (communicates(op.kind))
      at(*seconds, op.kind, op.pass) = static_cast<double>(program.sends(op).bytes) / bytes_per_s;
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

/// Ways to play a step.
enum Arm : size_t { kNoneArm, kWithinArm, kPingPongArm, kAgainArm, kOneByteArm, kArms };
constexpr std::array<const char*, kArms> kArmNames{"none", "within", "ping-pong", "ping-pong again",
                                                   "ping-pong, one byte"};
constexpr std::array<Overlap, kArms> kArmOverlaps{
    Overlap::kNone, Overlap::kWithin, Overlap::kPingPong, Overlap::kPingPong, Overlap::kPingPong};

/// A step of all ranks, and this rank's operations in it.
struct TimedStep {
  double seconds = 0;
  OpTimes times;
};

class OverlapMeasurer {
 public:
  OverlapMeasurer(const OverlapOptions& options, Communicator& comm)
      : options_(options),
        comm_(comm),
        cuttable_(comm),
        llama_(options.model, /*seed=*/1, /*cuda_device=*/-1) {
    for (std::unique_ptr<Step>& step : steps_)
      step = std::make_unique<Step>(options.model, &llama_, cuttable_, StepOptions{});
  }

  void measure(const OverlapSetting& setting);

 private:
  TimedStep step(Arm arm, const RankBatch& inputs, bool cut = false);
  SwappedBatch choose_batch(const OverlapSetting& setting, double wire_bytes_per_s);
  void play_rounds(const RankBatch& inputs, bool judged);
  void write(const char* line, Json values) const {
    if (comm_.rank() == 0) write_line(line, std::move(values));
  }

  const OverlapOptions& options_;
  Communicator& comm_;
  OneByteMessages cuttable_;
  Llama llama_;
  std::array<std::unique_ptr<Step>, kArms> steps_;
};

/// From a barrier to the end of the slowest rank. Gradients are summed by nobody: they would travel
/// on the same wire. `cut`: messages of one byte; only after whole ones, which leave finite numbers
/// behind.
TimedStep OverlapMeasurer::step(Arm arm, const RankBatch& inputs, bool cut) {
  cuttable_.cut(cut);
  for (const at::Tensor& parameter : llama_.parameters()) {
    if (parameter.grad().defined()) parameter.grad().zero_();
  }
  const StepInput input{program_of(kArmOverlaps[arm], options_.model, inputs), inputs.tokens};
  barrier(comm_, "begin of a step");
  PlayedStep played{.begin_s = steady_seconds()};
  const StepResult result = steps_[arm]->train(input, 1, {});
  played.end_s = played.computed_s = steady_seconds();
  const auto all = all_gather(comm_, played, "figures of a step");
  return {.seconds = figures_of(all).seconds, .times = result.times};
}

/// Chooses how much is swapped, so that the exchanges are as long, compared with what they run
/// under, as the setting wants.
SwappedBatch OverlapMeasurer::choose_batch(const OverlapSetting& setting, double wire_bytes_per_s) {
  constexpr int kTries = 2;  // one is not enough: swapping changes what there is to attend
  constexpr int64_t kStep = 8, kLeast = 16;
  const int64_t tokens = tokens_of(setting.length);
  SwappedBatch batch{.home_tokens = tokens - tokens / 8, .swapped_tokens = tokens / 8};
  for (int i = 0; i < kTries; ++i) {
    const RankBatch inputs = rank_batch(batch, options_.model, comm_.rank());
    const Program program = program_of(Overlap::kPingPong, options_.model, inputs);
    step(kOneByteArm, inputs);
    OpSeconds seconds{};
    add_means(program, step(kOneByteArm, inputs, /*cut=*/true).times, 1, /*computed=*/true,
              &seconds);
    set_wire_seconds(program, wire_bytes_per_s, &seconds);
    const double factor = factor_to_aim(setting.length, exchange_windows(program, seconds));
    const double wanted =
        static_cast<double>(batch.swapped_tokens) * all_gather(comm_, factor, "the factor")[0];
    batch.swapped_tokens =
        std::clamp(round_up(static_cast<int64_t>(wanted), kStep), kLeast,
                   setting.length == ExchangeLength::kShorter ? tokens / 2 : tokens);
    batch.home_tokens = tokens - batch.swapped_tokens;
  }
  return batch;
}

/// Each arm once a round, another one first each time; then the exchanges alone. Those that only
/// have to be shown rest in the later rounds.
void OverlapMeasurer::play_rounds(const RankBatch& inputs, bool judged) {
  const Program program = program_of(Overlap::kPingPong, options_.model, inputs);
  ExchangesAlone alone(comm_, program_of(Overlap::kNone, options_.model, inputs));
  OpTimes exchanged;
  OpSeconds seconds{};
  const int rounds = judged ? options_.rounds : options_.shown_rounds;
  for (int round = 0; round < rounds; ++round) {
    std::vector<Arm> arms = {kPingPongArm, kAgainArm, kOneByteArm};
    if (round < options_.shown_rounds) arms.insert(arms.end(), {kNoneArm, kWithinArm});
    std::ranges::rotate(arms, arms.begin() + round % static_cast<int>(arms.size()));
    Json steps = Json::object();
    for (const Arm arm : arms) {
      const TimedStep timed = step(arm, inputs, /*cut=*/arm == kOneByteArm);
      steps[kArmNames[arm]] = timed.seconds;
      if (arm == kOneByteArm) add_means(program, timed.times, rounds, /*computed=*/true, &seconds);
    }
    Json line = {{"step_s", steps}};
    if (round < options_.shown_rounds) line.update(core_figures(alone, comm_, &exchanged));
    write("round", line);
  }
  add_means(program, exchanged, std::min(rounds, options_.shown_rounds), /*computed=*/false,
            &seconds);
  Json windows = Json::array();
  for (const ExchangeWindow& window : exchange_windows(program, seconds)) {
    windows.push_back({{"exchange", op_name(window.kind)},
                       {"pass", pass_name(window.pass)},
                       {"alone_s", window.exchange_s},
                       {"under_attention", window.under_attention},
                       {"under_s", window.under_s},
                       {"longest_s", window.longest_s}});
  }
  write("exchanges", {{"step_bytes", sent_bytes(program)}, {"windows", windows}});
}

void OverlapMeasurer::measure(const OverlapSetting& setting) {
  limit_rate(setting.mb_per_s);
  const double wire_bytes_per_s = wire_rate(comm_, setting.mb_per_s);
  const SwappedBatch batch = choose_batch(setting, wire_bytes_per_s);
  write("setting", {{"name", setting.name()},
                    {"mb_per_s", setting.mb_per_s},
                    {"length", length_name(setting.length)},
                    {"judged", setting.judged},
                    {"tokens", batch.tokens()},
                    {"swapped_tokens", batch.swapped_tokens},
                    {"wire_bytes_per_s", wire_bytes_per_s}});
  const RankBatch inputs = rank_batch(batch, options_.model, comm_.rank());
  for (size_t arm = 0; arm < kArms; ++arm) step(static_cast<Arm>(arm), inputs);  // warms up
  play_rounds(inputs, setting.judged);
}

}  // namespace

void measure_overlap(const OverlapOptions& options, std::span<const OverlapSetting> settings,
                     Communicator& comm) {
  OverlapMeasurer measurer(options, comm);
  for (size_t i = 0; i < settings.size(); ++i) {
    if (comm.rank() == 0)
      fmt::print(stderr, "[{}/{}] {}\n", i + 1, settings.size(), settings[i].name());
    measurer.measure(settings[i]);
  }
}

}  // namespace distca::bench
