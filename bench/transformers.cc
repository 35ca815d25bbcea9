// One worker's training step compared with the same Llama in plain PyTorch (transformers_rival.py:
// the package transformers, PyTorch's attention a document, fused AdamW), in turns on the same
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

#include "bench/child_process.h"
#include "bench/ddp_rival.h"
#include "bench/main.h"
#include "bench/one_worker.h"
#include "bench/step_figures.h"
#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/comm/thread_group.h"
#include "distca/model/weights_file.h"

namespace distca::bench {
namespace {

constexpr double kTimeout = 300;  // seconds of one wait for the rival
constexpr int64_t kMostPositions = 1 << 20;
constexpr std::array<const char*, 4> kRunners{"ours", "rival", "ours again", "rival again"};

struct Arguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string python = DISTCA_PYTHON;
  std::string script = DISTCA_TRANSFORMERS_RIVAL;
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

class Rival {
 public:
  Rival(const Arguments& arguments, const Config& config)
      : folder_(std::filesystem::temp_directory_path() /
                fmt::format("distca_transformers_{}", getpid())),
        process_("the rival",
                 {arguments.python, arguments.script,
                  Json{{"threads", config.train.threads_per_rank},
                       {"optimizer", optimizer_json(config.optimizer)}}
                      .dump()},
                 kTimeout),
        versions_(answer("versions")) {}
  ~Rival() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  pid_t pid() const { return process_.pid(); }
  const Json& versions() const { return versions_; }

  /// Takes over the weights of `model`.
  void load(const Llama& model) {
    std::filesystem::create_directories(folder_);
    write_file_atomically(folder_ / "config.json",
                          model.config().to_hugging_face(kMostPositions).dump());
    AtomicFile weights(folder_ / "model.safetensors");
    write_weights(weights, model.config(), model.parameters(), {{"format", "pt"}});
    weights.commit();
    process_.write_line(Json{{"load", folder_}}.dump());
    DISTCA_CHECK_EQ(answer("answer to load").at("parameters").get<int64_t>(),
                    model.config().num_parameters());
  }

  TimedStep run(const PlannedBatch& batch) {
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
    process_.write_line(Json{{"step", step}}.dump());
    const Json told = answer("answer to step");
    TimedStep timed{.elapsed = told.at("elapsed"),
                    .step = told.at("step"),
                    .loss = told.at("mean_loss"),
                    .gradient_norm = told.at("gradient_norm")};
    for (const char* const part : kStepParts) timed.parts[part] = told.at(part);
    return timed;
  }

 private:
  Json answer(const std::string& awaited) {
    return parse_json(process_.read_line(awaited), "what the rival answered", ErrorKind::kIo);
  }

  std::filesystem::path folder_;  // folder of the weights
  ChildProcess process_;
  Json versions_;
};

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
      line[kRunners[runner]] = (ours ? worker.run(0, batch) : rival.run(batch)).seconds();
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
  Rival rival(arguments, config);
  const Resident ours_resident(getpid()), rival_resident(rival.pid());
  run_ranks(1, {}, [&](Communicator& comm) {
    OneWorker worker(config, comm);
    worker.add(config.attention.kernel);
    Json settings = one_worker_settings(config, arguments.rounds);
    settings.update({{"kernel", worker.step(0).kernel().name()}, {"rival", rival.versions()}});
    write_header("transformers", settings);
    rival.load(worker.model());
    const PlannedBatch batch = worker.next_batch();  // warms up
    const TimedStep first = worker.run(0, batch);
    check_rival(first, rival.run(batch),
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
