#include "bench/overlap_sums.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "bench/main.h"
#include "bench/namespaces.h"
#include "bench/one_byte_messages.h"
#include "bench/step_arms.h"
#include "distca/base/clock.h"
#include "distca/comm/collectives.h"

namespace distca::bench {
namespace {

constexpr double kBucketMb = 0.5;
/// The sum's aimed length, relative to the backward that can hide it.
constexpr double kAimedShorter = 0.55, kAimedLonger = 1.5;
/// One in so many tokens is swapped, so that exchanges of core attention are on the wire, too.
constexpr int64_t kSwappedShare = 32;

SwappedBatch batch_of(int64_t tokens) {
  const int64_t swapped = round_up(std::max<int64_t>(tokens / kSwappedShare, 16), 8);
  return {.home_tokens = tokens - swapped, .swapped_tokens = swapped};
}

/// A way to sum, with weights of its own.
struct SumArm {
  SumArm(const LlamaConfig& model, bool overlaps, Communicator& comm)
      : options{.overlap_grad_reduce = overlaps, .bucket_mb = kBucketMb},
        gradients(gradient_exchange(model, options, comm.rank(), comm.size())),
        llama(model, /*seed=*/1, /*cuda_device=*/-1),
        optimizer(llama, 1, {}, gradients),
        step(model, &llama, comm, options) {}

  Program program(const RankBatch& inputs) const {
    return step_program(llama.config(), options, /*holds_weights=*/true,
                        ProgramRequest::Kind::kTrain, inputs.parts, gradients);
  }

  StepOptions options;
  std::shared_ptr<const GradientExchange> gradients;
  Llama llama;
  Optimizer optimizer;
  Step step;
};

/// The time of what is played, and of what is on the wire, from the first message of a sum to the
/// end of backward.
struct Hiding {
  double under_s = 0;     // compute
  double wire_s = 0;      // all messages, sums included
  double exchange_s = 0;  // core attention's messages
  double sum_s = 0;       // all sums
  /// How much of the backward that is left by exchanges the sum takes.
  double share() const { return sum_s / (under_s - exchange_s); }
};

Hiding hiding(const Program& program, const OpSeconds& seconds, double bytes_per_s) {
  Hiding result;
  bool sums = false;
  for (const Op& op : program.ops) {
    sums = sums || op.kind == OpKind::kGradReduce;
    const double wire_s = static_cast<double>(program.sends(op).bytes) / bytes_per_s;
    if (op.bucket >= 0) {
      result.sum_s += wire_s;
    } else if (sums) {
      result.exchange_s += wire_s;
      if (op.stream == Stream::kCompute)
        result.under_s += seconds[static_cast<size_t>(op.kind)][static_cast<size_t>(op.pass)];
    }
  }
  result.wire_s = result.sum_s + result.exchange_s;
  return result;
}

class SumMeasurer {
 public:
  SumMeasurer(const OverlapOptions& options, Communicator& comm)
      : options_(options),
        comm_(comm),
        cuttable_(comm),
        hidden_(options.model, /*overlaps=*/true, cuttable_),
        behind_(options.model, /*overlaps=*/false, cuttable_) {}

  void measure(const SumSetting& setting) {
    limit_rate(setting.mb_per_s);
    const double rate = wire_rate(comm_, setting.mb_per_s);
    const int64_t tokens = choose_tokens(setting, rate);
    const RankBatch inputs = rank_batch(batch_of(tokens), options_.model, comm_.rank());
    const Program program = hidden_.program(inputs);
    for (SumArm* arm : {&hidden_, &behind_}) play(*arm, inputs, /*cut=*/false);  // warms up
    const Hiding all = measured_hiding(inputs, rate);
    write("sum", {{"name", setting.name()},
                  {"longer", setting.longer},
                  {"judged", setting.judged},
                  {"tokens", tokens},
                  {"buckets", hidden_.gradients->buckets.size()},
                  {"wire_bytes_per_s", rate},
                  {"sum_s", all.sum_s},
                  {"exchange_s", all.exchange_s},
                  {"under_s", all.under_s},
                  {"share", all.share()}});
    const int rounds = setting.judged ? options_.rounds : options_.shown_rounds;
    ExchangesAlone alone(cuttable_, behind_.program(inputs));
    for (int round = 0; round < rounds; ++round) {
      Json line = play_round(round, inputs, all);
      if (round < options_.shown_rounds) {
        OpTimes times;
        cuttable_.cut(false);
        line.update(core_figures(alone, comm_, &times));
      }
      write("round", std::move(line));
    }
  }

 private:
  struct Turn {
    const char* name;
    SumArm* arm;
    bool cut;
  };

  /// Plays a step and returns its seconds, from a barrier to the end of the slowest rank.
  double play(SumArm& arm, const RankBatch& inputs, bool cut, OpTimes* times = nullptr) {
    cuttable_.cut(cut);
    arm.optimizer.zero_gradients();
    const StepInput input{arm.program(inputs), inputs.tokens};
    barrier(comm_, "begin of a step");
    PlayedStep played{.begin_s = steady_seconds()};
    // No update: with cut messages, sums are wrong.
    const StepResult result = arm.step.train(input, 1,
                                             {.optimizer = &arm.optimizer,
                                              .workers = &comm_,
                                              .accepts = [](const GradientSum&) { return false; }});
    played.end_s = played.computed_s = steady_seconds();
    if (times != nullptr) *times = result.times;
    return figures_of(all_gather(comm_, played, "figures of a step")).seconds;
  }

  /// Both ranks return the figures of rank 0.
  Hiding measured_hiding(const RankBatch& inputs, double rate) {
    OpTimes times;
    play(hidden_, inputs, /*cut=*/true, &times);
    const Program program = hidden_.program(inputs);
    OpSeconds seconds{};
    add_means(program, times, 1, /*computed=*/true, &seconds);
    return all_gather(comm_, hiding(program, seconds, rate), "what hides")[0];
  }

  int64_t choose_tokens(const SumSetting& setting, double rate) {
    constexpr int kTries = 3;  // attention grows with the square
    const double aim = setting.longer ? kAimedLonger : kAimedShorter;
    int64_t tokens = 768;
    for (int i = 0; i < kTries; ++i) {
      const RankBatch inputs = rank_batch(batch_of(tokens), options_.model, comm_.rank());
      play(hidden_, inputs, /*cut=*/false);
      const double more = measured_hiding(inputs, rate).share() / aim;
      tokens =
          std::clamp(round_up(std::llround(static_cast<double>(tokens) * std::pow(more, 0.7)), 32),
                     int64_t{128}, int64_t{6144});
    }
    return tokens;
  }

  Json play_round(int round, const RankBatch& inputs, const Hiding& all) {
    std::vector<Turn> turns = {{"hidden", &hidden_, false},
                               {"hidden again", &hidden_, false},
                               {"behind", &behind_, false},
                               {"one byte", &hidden_, true}};
    std::ranges::rotate(turns, turns.begin() + round % 4);
    Json steps = Json::object();
    for (const Turn& turn : turns) steps[turn.name] = play(*turn.arm, inputs, turn.cut);
    // No step can be shorter: what comes before the first sum, then the wire.
    const double one_byte = steps["one byte"];
    return {{"step_s", steps}, {"wire_s", one_byte - all.under_s + all.wire_s}};
  }

  void write(const char* line, Json values) const {
    if (comm_.rank() == 0) write_line(line, std::move(values));
  }

  const OverlapOptions& options_;
  Communicator& comm_;
  OneByteMessages cuttable_;
  SumArm hidden_, behind_;
};

}  // namespace

std::string SumSetting::name() const {
  return fmt::format("{:g} MB/s sum {}", mb_per_s, longer ? "longer" : "shorter");
}

void measure_sums(const OverlapOptions& options, std::span<const SumSetting> settings,
                  Communicator& comm) {
  if (settings.empty()) return;
  SumMeasurer measurer(options, comm);
  for (const SumSetting& setting : settings) {
    if (comm.rank() == 0) fmt::print(stderr, "{}\n", setting.name());
    measurer.measure(setting);
  }
}

}  // namespace distca::bench
