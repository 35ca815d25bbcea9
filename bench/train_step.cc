// A whole training step with one attention kernel beside another, in turns on the same batches:
//   bench/report.py build/release/bench/train_step --config configs/demo.toml
// The other kernel runs twice in each round: it against itself shows what the machine decides.

#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "bench/main.h"
#include "distca/base/clock.h"
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
};

constexpr std::array<const char*, 3> kRunners{"ours", "other", "other again"};

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
        gradients_(gradient_exchange(config.model, step_options(config), 0, 1)),
        optimizer_(model_, static_cast<uint64_t>(config.train.seed), config.optimizer, gradients_) {
    for (const std::string& kernel : {arguments.kernel, arguments.other, arguments.other}) {
      StepOptions options = step_options(config);
      options.kernel = kernel_choice(kernel);
      steps_.push_back(std::make_unique<Step>(config.model, &model_, comm_, options));
    }
  }

  std::string kernel(size_t runner) const { return steps_[runner]->kernel().name(); }

  /// The first round's times are thrown away: it warms up. A round begins with another each time.
  void measure(int rounds) {
    for (int round = -1; round < rounds; ++round) {
      const PlannedBatch batch = plan_batch(config_, data_, {stream_.next()}, 0, 1, {}, gradients_);
      Json line = Json::object();
      for (size_t turn = 0; turn < kRunners.size(); ++turn) {
        const size_t runner = (turn + static_cast<size_t>(round + 1)) % kRunners.size();
        line[kRunners[runner]] = time_step(*steps_[runner], batch);
      }
      if (round >= 0) write_line("round", line);
    }
  }

 private:
  /// Seconds: with one thread its processor time, which the turns of other programs do not
  /// lengthen; the time that passes with several.
  Json time_step(Step& step, const PlannedBatch& batch) {
    const bool one_thread = config_.train.threads_per_rank == 1;
    const auto now = one_thread ? thread_processor_seconds : steady_seconds;
    const double begin = now();
    optimizer_.zero_gradients();
    const StepResult result = step.train(batch.input, batch.figures.targets,
                                         {.optimizer = &optimizer_,
                                          .workers = &comm_,
                                          .max_grad_norm = config_.optimizer.max_grad_norm,
                                          .lr = config_.optimizer.lr});
    const double step_s = now() - begin;
    const OpTimes& times = result.times;
    const auto& core_attention =
        (one_thread ? times.processor_seconds
                    : times.seconds)[static_cast<int>(OpKind::kCoreAttention)];
    const auto of = [&](Pass pass) {
      return core_attention[static_cast<int>(pass)][static_cast<int>(OpPart::kPlay)];
    };
    const double forward = of(Pass::kForward), backward = of(Pass::kBackward);
    return {{"step", step_s},
            {"attention", forward + backward},
            {"attention forward", forward},
            {"attention backward", backward}};
  }

  const Config& config_;
  Communicator& comm_;
  IndexedDataset data_;
  BatchStream stream_;
  Llama model_;
  std::shared_ptr<const GradientExchange> gradients_;
  Optimizer optimizer_;
  std::vector<std::unique_ptr<Step>> steps_;  // [kRunners]
};

Config config_of(const Arguments& arguments, const std::string& kernel) {
  std::vector<std::string> overrides = arguments.overrides;
  overrides.push_back("attention.kernel=" + kernel);
  return load_config(arguments.config, overrides);
}

void measure(const Arguments& arguments) {
  const Config config = config_of(arguments, arguments.kernel);
  config_of(arguments, arguments.other);  // refuses what it cannot compute
  run_ranks(1, {}, [&](Communicator& comm) {
    at::set_num_threads(static_cast<int>(config.train.threads_per_rank));
    Bench bench(config, arguments, comm);
    write_header("train_step", {{"rounds", arguments.rounds},
                                {"threads", config.train.threads_per_rank},
                                {"nano_batches", config.batch.nano_batches},
                                {"nano_batch_tokens", config.batch.nano_batch_tokens},
                                {"model", config.model.to_hugging_face(0)},
                                {"type", short_name(config.model.dtype)},
                                {"kernel", bench.kernel(0)},
                                {"other_kernel", bench.kernel(1)}});
    bench.measure(arguments.rounds);
  });
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app{"A training step with one attention kernel beside another", "train_step"};
  app.add_option("--config", arguments.config, "TOML file; without it, defaults");
  app.add_option("overrides", arguments.overrides, "section.key=value, after the file");
  app.add_option("--kernel", arguments.kernel)->check(CLI::IsMember(kernel_names()));
  app.add_option("--other", arguments.other)->check(CLI::IsMember(kernel_names()));
  app.add_option("--rounds", arguments.rounds)->check(CLI::Range(1, 10000));
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
