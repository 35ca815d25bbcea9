// One worker's training step compared with the same Llama in plain PyTorch (rival.py: the
// package transformers, PyTorch's attention a document, fused AdamW), in turns on the same
// batches and one thread:
//   bench/report.py build/release/bench/transformers --python PYTHON --config configs/demo.toml
// Both take two turns in each round: either against itself shows what the machine decides.

#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "bench/main.h"
#include "bench/one_worker.h"
#include "bench/rival.h"
#include "bench/step_figures.h"
#include "distca/base/error.h"
#include "distca/comm/thread_group.h"

namespace distca::bench {
namespace {

constexpr double kTimeout = 300;  // seconds of one wait for the rival
constexpr std::array<const char*, 4> kRunners{"ours", "rival", "ours again", "rival again"};

struct Arguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string python = kPython;
  int rounds = 15;
};

/// The most RAM that a process has used. The same counters of the system serve for both processes.
class Resident {
 public:
  /// From now on, the peak counts from what the process has now.
  explicit Resident(pid_t pid) : folder_(fmt::format("/proc/{}", pid)) {
    std::ofstream(folder_ / "clear_refs") << "5";
    before_ = peak();
  }
  int64_t peak() const {
    std::ifstream status(folder_ / "status");
    for (std::string word; status >> word;) {
      int64_t kib = 0;
      if (word == "VmHWM:" && status >> kib) return 1024 * kib;
    }
    throw Error(ErrorKind::kIo, "{}/status does not say VmHWM", folder_.string());
  }
  int64_t before() const { return before_; }

 private:
  std::filesystem::path folder_;
  int64_t before_;
};

/// Takes over the weights of `model`.
void load(Rival& rival, const Llama& model) {
  const Json answer = rival.ask("load", {rival.save(model)})[0];
  DISTCA_CHECK_EQ(answer.at("parameters").get<int64_t>(), model.config().num_parameters());
}

TimedStep run(Rival& rival, const PlannedBatch& batch) {
  Json nano_batches = Json::array();
  for (const LocalTokens& tokens : batch.input.tokens) {
    std::vector<int64_t> lengths;
    for (const int64_t position : tokens.positions) {
      if (position == 0) lengths.push_back(0);
      ++lengths.back();
    }
    nano_batches.push_back({{"lengths", lengths},
                            {"ids", tokens.ids},
                            {"targets", tokens.targets},
                            {"positions", tokens.positions}});
  }
  const Json step = {{"nano_batches", nano_batches}, {"num_targets", batch.figures.targets}};
  const Json told = rival.ask("step", {step})[0];
  TimedStep timed{.elapsed = told.at("elapsed"),
                  .step = told.at("step"),
                  .loss = told.at("mean_loss"),
                  .gradient_norm = told.at("gradient_norm")};
  for (const char* const part : kStepParts) timed.parts[part] = told.at(part);
  return timed;
}

/// Both begin with the same weights.
void check_rival(const TimedStep& ours, const TimedStep& rival, int64_t tokens) {
  const double bound = same_step_bound(tokens);
  const auto same = [&](double a, double b) { return std::fabs(a - b) <= bound * a; };
  DISTCA_CHECK(same(ours.loss, rival.loss) && same(ours.gradient_norm, rival.gradient_norm),
               "the rival computes something else: loss {:.9f} against {:.9f}, gradient norm "
               "{:.9f} against {:.9f}, bound {:.1e}",
               rival.loss, ours.loss, rival.gradient_norm, ours.gradient_norm, bound);
  write_line("rival_check", {{"loss", ours.loss},
                             {"rival_loss", rival.loss},
                             {"gradient_norm", ours.gradient_norm},
                             {"rival_gradient_norm", rival.gradient_norm},
                             {"bound", bound}});
}

void measure_rounds(OneWorker& worker, Rival& rival, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    const PlannedBatch batch = worker.next_batch();
    Json line = Json::object();
    for (size_t turn = 0; turn < kRunners.size(); ++turn) {
      const size_t runner = (turn + static_cast<size_t>(round)) % kRunners.size();
      const bool ours = runner % 2 == 0;
      line[kRunners[runner]] = (ours ? worker.run(0, batch) : run(rival, batch)).seconds();
    }
    write_line("round", line);
  }
}

void measure(const Arguments& arguments) {
  const Config config = load_config(arguments.config, arguments.overrides);
  DISTCA_THROW_IF(config.model.dtype != ScalarType::kFloat32 || config.model.sliding_window != 0,
                  ErrorKind::kUsage,
                  "the rival computes with model.dtype=float32 and model.sliding_window=0 alone");
  // Both have tensors in huge pages, as `distca train` does.
  setenv("THP_MEM_ALLOC_ENABLE", "1", /*overwrite=*/0);
  Rival rival("transformers", arguments.python, kTimeout);
  rival.start({{"threads", config.train.threads_per_rank}}, config.optimizer);
  const Json versions = rival.answer(0, "versions");
  const Resident ours_resident(getpid()), rival_resident(rival.pid(0));
  run_ranks(1, {}, [&](Communicator& comm) {
    OneWorker worker(config, comm);
    worker.add(config.attention.kernel);
    Json settings = one_worker_settings(config, arguments.rounds);
    settings.update({{"kernel", worker.step(0).kernel().name()}, {"rival", versions}});
    write_header("transformers", settings);
    load(rival, worker.model());
    const PlannedBatch batch = worker.next_batch();  // warms up
    const TimedStep first = worker.run(0, batch);
    check_rival(first, run(rival, batch),
                config.batch.nano_batches * config.batch.nano_batch_tokens);
    measure_rounds(worker, rival, arguments.rounds);
    write_line("memory",
               {{"ours", {{"before", ours_resident.before()}, {"peak", ours_resident.peak()}}},
                {"rival", {{"before", rival_resident.before()}, {"peak", rival_resident.peak()}}}});
  });
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app{"A training step of one worker beside the same Llama in plain PyTorch",
               "transformers"};
  app.option_defaults()->always_capture_default();
  app.add_option("--config", arguments.config, "TOML file; without it, defaults");
  app.add_option("overrides", arguments.overrides, "section.key=value, after the file");
  app.add_option("--python", arguments.python, "An interpreter with PyTorch and transformers")
      ->check(CLI::ExistingFile);
  app.add_option("--rounds", arguments.rounds)->check(CLI::Range(1, 10000));
  if (!parse_options(app, argc, argv)) return 0;
  measure(arguments);
  return 0;
}

}  // namespace
}  // namespace distca::bench

int main(int argc, char** argv) {
  return distca::bench::run_benchmark("bench/transformers",
                                      [&] { return distca::bench::run(argc, argv); });
}
