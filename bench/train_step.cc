// A whole training step with one attention kernel beside another, in turns on the same batches:
//   build/release/bench/train_step --config configs/demo.toml
// The other kernel runs twice in each round: it against itself shows what the machine decides.

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <functional>
#include <string>
#include <vector>

#include "bench/program.h"
#include "bench/rounds.h"
#include "distca/base/build_info.h"
#include "distca/base/clock.h"
#include "distca/base/json.h"
#include "distca/base/machine.h"
#include "distca/base/text.h"
#include "distca/batch/indexed_dataset.h"
#include "distca/comm/thread_group.h"
#include "distca/train/config.h"
#include "distca/train/optimizer.h"
#include "distca/train/plan_ahead.h"
#include "distca/train/step.h"

namespace distca::bench {
namespace {

struct Arguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string kernel = "auto";
  std::string other = "aten";
  int rounds = 15;
  bool json = false;
};

/// What is timed of a step, in seconds: with one thread its processor time, which the turns of
/// other programs do not lengthen; the time that passes with several.
constexpr size_t kParts = 4;
constexpr std::array<const char*, kParts> kPartNames{"step", "attention", "attention forward",
                                                     "attention backward"};
using StepSeconds = std::array<double, kParts>;

/// One way to run a step.
struct Runner {
  std::string kernel;  // AttentionKernel::name
  std::function<StepSeconds(const PlannedBatch&)> run;
  std::array<Rates, kParts> seconds = {};  // [part][round]
};

enum Who : size_t { kOurs, kOther, kOtherAgain, kRunners };

/// One worker with everything that a step needs, and a step a runner.
class Bench {
 public:
  Bench(const Config& config, const Arguments& arguments, Communicator& comm)
      : config_(config),
        comm_(comm),
        data_(config.data.prefix),
        stream_(data_.document_lengths(),
                split_documents(data_.num_documents(), config.data.validation_fraction,
                                config.batch.seed)
                    .train,
                config.batch),
        model_(config.model, static_cast<uint64_t>(config.train.seed), comm.cuda_device()),
        optimizer_(model_.parameters(), config.optimizer) {
    for (const std::string& kernel : {arguments.kernel, arguments.other, arguments.other}) {
      StepOptions options = step_options(config);
      options.kernel = kernel_choice(kernel);
      const auto step = std::make_shared<Step>(config.model, &model_, comm_, options);
      runners_.push_back({.kernel = step->kernel().name(), .run = [this, step](const auto& batch) {
                            return time_step(*step, batch);
                          }});
    }
  }

  /// The first round's times are thrown away: it warms up. A round begins with another each time.
  std::vector<Runner> measure(int rounds) {
    for (int round = -1; round < rounds; ++round) {
      const PlannedBatch batch = plan_batch(config_, data_, {stream_.next()}, 0, 1);
      for (size_t turn = 0; turn < kRunners; ++turn) {
        Runner& runner = runners_[(turn + static_cast<size_t>(round + 1)) % kRunners];
        const StepSeconds seconds = runner.run(batch);
        if (round < 0) continue;
        for (size_t part = 0; part < kParts; ++part) runner.seconds[part].push_back(seconds[part]);
      }
    }
    return runners_;
  }

 private:
  StepSeconds time_step(Step& step, const PlannedBatch& batch) {
    const bool one_thread = config_.train.threads_per_rank == 1;
    const auto now = one_thread ? thread_processor_seconds : steady_seconds;
    const double begin = now();
    optimizer_.zero_gradients();
    const StepResult result = step.train(
        batch.input, batch.figures.targets, [&] { optimizer_.sum_and_clip(comm_); },
        [&] { optimizer_.update(config_.optimizer.lr); });
    const double step_s = now() - begin;
    const OpTimes& times = result.times;
    const auto& core_attention =
        (one_thread ? times.processor_seconds
                    : times.seconds)[static_cast<int>(OpKind::kCoreAttention)];
    const auto of = [&](Pass pass) {
      return core_attention[static_cast<int>(pass)][static_cast<int>(OpPart::kPlay)];
    };
    const double forward = of(Pass::kForward), backward = of(Pass::kBackward);
    return {step_s, forward + backward, forward, backward};
  }

  const Config& config_;
  Communicator& comm_;
  IndexedDataset data_;
  BatchStream stream_;
  Llama model_;
  Optimizer optimizer_;
  std::vector<Runner> runners_;
};

/// How many times as long the other takes: against ours, and against itself.
struct Comparison {
  Estimate speedup, control;
};
Comparison compare(const std::vector<Runner>& runners, size_t part) {
  const Rates& other = runners[kOther].seconds[part];
  return {estimate_ratio(other, runners[kOurs].seconds[part]),
          estimate_ratio(other, runners[kOtherAgain].seconds[part])};
}

void print_table(const Config& config, const Arguments& arguments,
                 const std::vector<Runner>& runners) {
  const LlamaConfig& model = config.model;
  fmt::print(
      "{}, {} thread{}, distca {}\n{} x {} tokens a step, {} layers, heads {}:{}, head_dim {}, {}; "
      "one worker, {} rounds, {}\n\n",
      cpu_name(), config.train.threads_per_rank, config.train.threads_per_rank == 1 ? "" : "s",
      build_info::kCommit, config.batch.nano_batches,
      with_thousands(config.batch.nano_batch_tokens), model.num_hidden_layers,
      model.num_attention_heads, model.num_key_value_heads, model.head_dim, short_name(model.dtype),
      arguments.rounds, config.train.threads_per_rank == 1 ? "processor time" : "elapsed time");
  const std::string &ours = runners[kOurs].kernel, &other = runners[kOther].kernel;
  Table table({"median a step", ours + " ms", other + " ms", "times faster", "95 % interval",
               other + " against itself"});
  for (size_t part = 0; part < kParts; ++part) {
    const auto ms = [&](Who who) {
      return fmt::format("{:.1f}", 1e3 * estimate(runners[who].seconds[part]).median);
    };
    const auto [speedup, control] = compare(runners, part);
    table.add_row({kPartNames[part], ms(kOurs), ms(kOther), fmt::format("{:.3f}", speedup.median),
                   fmt::format("{:.3f} .. {:.3f}", speedup.low, speedup.high),
                   fmt::format("{:.3f} .. {:.3f}", control.low, control.high)});
  }
  fmt::print("{}", table.to_string());
}

Json to_json(const Estimate& estimate) {
  return {{"median", estimate.median}, {"low", estimate.low}, {"high", estimate.high}};
}

void print_json(const Config& config, const std::vector<Runner>& runners) {
  Json parts = Json::object();
  for (size_t part = 0; part < kParts; ++part) {
    const auto [speedup, control] = compare(runners, part);
    parts[kPartNames[part]] = {{"seconds", runners[kOurs].seconds[part]},
                               {"other_seconds", runners[kOther].seconds[part]},
                               {"other_again_seconds", runners[kOtherAgain].seconds[part]},
                               {"times_faster", to_json(speedup)},
                               {"control", to_json(control)}};
  }
  const Json all = {{"machine", cpu_name()},
                    {"commit", build_info::kCommit},
                    {"threads", config.train.threads_per_rank},
                    {"kernel", runners[kOurs].kernel},
                    {"other_kernel", runners[kOther].kernel},
                    {"parts", parts}};
  fmt::print("{}\n", all.dump());
}

Config config_of(const Arguments& arguments, const std::string& kernel) {
  std::vector<std::string> overrides = arguments.overrides;
  overrides.push_back("attention.kernel=" + kernel);
  return load_config(arguments.config, overrides);
}

void measure(const Arguments& arguments) {
  const Config config = config_of(arguments, arguments.kernel);
  config_of(arguments, arguments.other);  // refuses what it cannot compute
  std::vector<Runner> runners;
  run_ranks(1, {}, [&](Communicator& comm) {
    at::set_num_threads(static_cast<int>(config.train.threads_per_rank));
    runners = Bench(config, arguments, comm).measure(arguments.rounds);
  });
  arguments.json ? print_json(config, runners) : print_table(config, arguments, runners);
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app{"A training step with one attention kernel beside another", "train_step"};
  app.add_option("--config", arguments.config, "TOML file; without it, defaults");
  app.add_option("overrides", arguments.overrides, "section.key=value, after the file");
  app.add_option("--kernel", arguments.kernel)->check(CLI::IsMember(kernel_names()));
  app.add_option("--other", arguments.other)->check(CLI::IsMember(kernel_names()));
  app.add_option("--rounds", arguments.rounds)->check(CLI::Range(1, 10000));
  app.add_flag("--json", arguments.json);
  if (!parse_options(app, argc, argv)) return 0;
  measure(arguments);
  return 0;
}

}  // namespace
}  // namespace distca::bench

int main(int argc, char** argv) {
  return distca::bench::run_benchmark("bench/train_step",
                                      [&] { return distca::bench::run(argc, argv); });
}
