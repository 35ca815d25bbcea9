// A whole training step with one attention kernel beside another, in turns on the same batches:
//   bench/report.py build/release/bench/train_step --config configs/demo.toml
// The other kernel runs twice in each round: it against itself shows what the machine decides.

#include <CLI/CLI.hpp>
#include <array>
#include <string>
#include <vector>

#include "bench/main.h"
#include "bench/one_worker.h"
#include "distca/comm/thread_group.h"
#include "distca/train/config.h"

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

Config config_of(const Arguments& arguments, const std::string& kernel) {
  std::vector<std::string> overrides = arguments.overrides;
  overrides.push_back("attention.kernel=" + kernel);
  return load_config(arguments.config, overrides);
}

void measure(const Arguments& arguments) {
  const Config config = config_of(arguments, arguments.kernel);
  config_of(arguments, arguments.other);  // refuses what it cannot compute
  run_ranks(1, {}, [&](Communicator& comm) {
    OneWorker worker(config, comm);
    for (const std::string& kernel : {arguments.kernel, arguments.other, arguments.other})
      worker.add(kernel_choice(kernel));
    Json settings = one_worker_settings(config, arguments.rounds);
    settings.update({{"kernel", worker.step(0).kernel().name()},
                     {"other_kernel", worker.step(1).kernel().name()}});
    write_header("train_step", settings);
    // The first round's times are thrown away: it warms up. A round begins with another each time.
    for (int round = -1; round < arguments.rounds; ++round) {
      const PlannedBatch batch = worker.next_batch();
      Json line = Json::object();
      for (size_t turn = 0; turn < kRunners.size(); ++turn) {
        const size_t runner = (turn + static_cast<size_t>(round + 1)) % kRunners.size();
        line[kRunners[runner]] = worker.run(runner, batch).seconds();
      }
      if (round >= 0) write_line("round", line);
    }
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
