// distca train: as one process, as a launcher of local ranks, or as a rank that somebody started.

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>

#include "cli/verbs.h"
#include "distca/base/env.h"
#include "distca/base/error.h"
#include "distca/base/stop_signals.h"
#include "distca/comm/device_copy.h"
#include "distca/comm/gloo_group.h"
#include "distca/comm/launch/launch.h"
#include "distca/comm/launch/local_ranks.h"
#include "distca/comm/launch/rendezvous.h"
#include "distca/comm/launch/store_process.h"
#include "distca/comm/thread_group.h"
#include "distca/train/check_run.h"
#include "distca/train/config.h"
#include "distca/train/run_folder.h"
#include "distca/train/trainer.h"

namespace distca::cli {
namespace {

struct TrainArguments {
  std::string config;
  std::vector<std::string> overrides;
  int workers = 1;
  int master_port = 0;
  std::string trace;
  bool print_config = false;
};

/// Where the run is, and that it is said when somebody stops this process, which has rank 0.
struct Told {
  explicit Told(const Config& config)
      : state(std::make_shared<RunState>(config.train.output_dir, config.train.steps)),
        stop([state = state](const std::string& signal) { return state->stopped_by(signal); }) {}

  std::shared_ptr<RunState> state;
  StopSignals stop;
};

void train_as_rank(const Config& config, const Rendezvous& rendezvous) {
  const auto store = start_store_process(rendezvous, config.comm.grace_s);
  std::optional<Told> told;  // starts a thread: after the store's process was forked
  if (rendezvous.rank == 0) told.emplace(config);
  RunState others(config.train.output_dir, config.train.steps);
  const std::unique_ptr<Communicator> comm = make_gloo_group(rendezvous, config.comm);
  train(config, *comm, told ? *told->state : others);
}

/// The command that runs this rank again: the same words, without the launcher's own options.
std::vector<std::string> rank_command(const TrainArguments& arguments) {
  std::vector<std::string> command = {std::filesystem::read_symlink("/proc/self/exe"), "train"};
  if (!arguments.config.empty()) command.insert(command.end(), {"--config", arguments.config});
  command.insert(command.end(), arguments.overrides.begin(), arguments.overrides.end());
  return command;
}

/// Ranks that hold weights, of all that run together.
int workers_of(const Config& config, const TrainArguments& arguments,
               const std::optional<Rendezvous>& rendezvous) {
  const int64_t dedicated = config.servers.dedicated;
  if (rendezvous) {
    DISTCA_THROW_IF(dedicated >= rendezvous->size, ErrorKind::kConfig,
                    "servers.dedicated = {}: {} started {} ranks, of which at least one must be a "
                    "worker",
                    dedicated, rendezvous->source, rendezvous->size);
    return rendezvous->size - static_cast<int>(dedicated);
  }
  DISTCA_THROW_IF(num_ranks(config, arguments.workers) > kMostRanks, ErrorKind::kConfig,
                  "--workers {} and servers.dedicated = {}: more than {} processes of one machine",
                  arguments.workers, dedicated, kMostRanks);
  return arguments.workers;
}

/// Who shares this machine's memory.
LocalRanks ranks_here(const Config& config, int workers,
                      const std::optional<Rendezvous>& rendezvous) {
  if (!rendezvous) return {.count = num_ranks(config, workers)};
  const int count = local_ranks(*rendezvous, env_string);
  if (count == 1) return {.first = rendezvous->rank};
  // Launchers number the ranks of a machine one after another unless told otherwise.
  const int first = rendezvous->rank - rendezvous->local_rank;
  return {.first = std::clamp(first, 0, rendezvous->size - count), .count = count};
}

int run_train(TrainArguments arguments) {
  if (!arguments.trace.empty()) arguments.overrides.push_back("train.trace=" + arguments.trace);
  const Config config = load_config(arguments.config, arguments.overrides);
  if (arguments.print_config) {
    std::fputs(print_config(config).c_str(), stdout);
    return 0;
  }
  DISTCA_THROW_IF(arguments.master_port < 0 || arguments.master_port > 65535, ErrorKind::kUsage,
                  "--master-port {}: 0 (a free one) to 65535", arguments.master_port);
  // Whoever read our output may go; training goes on, and ranks inherit this.
  std::signal(SIGPIPE, SIG_IGN);
  const auto rendezvous = find_rendezvous(env_string);
  const int workers = workers_of(config, arguments, rendezvous);
  check_run(config, workers, ranks_here(config, workers, rendezvous));
  // Who writes is rank 0; what lies on other machines' disks is no matter.
  if (!rendezvous || rendezvous->rank == 0)
    check_run_folder(config.train.output_dir, config.train.overwrite);
  DISTCA_THROW_IF(
      rendezvous && arguments.workers > 1, ErrorKind::kUsage,
      "--workers {}, but {} started this process as one of {} ranks: leave --workers out",
      arguments.workers, rendezvous->source, rendezvous->size);
  DISTCA_THROW_IF(
      rendezvous && config.ranks_are_threads(), ErrorKind::kConfig,
      "comm.backend = threads, but {} started this process as one of {} ranks: use gloo",
      rendezvous->source, rendezvous->size);
  set_up_process(config);
  if (rendezvous) {
    train_as_rank(config, *rendezvous);
    return 0;
  }
  const int ranks = num_ranks(config, workers);
  if (ranks == 1 || config.ranks_are_threads()) {
    const ThreadDevice device = config.on_cuda() ? cuda_thread_device(0) : ThreadDevice{};
    const Told told(config);
    run_ranks(
        ranks, config.comm, [&](Communicator& comm) { train(config, comm, *told.state); }, device);
    return 0;
  }
  return launch_local({.workers = ranks,
                       .command = rank_command(arguments),
                       .port = arguments.master_port,
                       .timeout_s = config.comm.timeout_s,
                       .grace_s = config.comm.grace_s});
}

}  // namespace

void add_train(CLI::App& app, int* exit_code) {
  auto arguments = std::make_shared<TrainArguments>();
  CLI::App* verb = app.add_subcommand("train", "Train a Llama on a prepared data set");
  verb->add_option("--config", arguments->config, "TOML file; without it, defaults")
      ->type_name("FILE");
  verb->add_option("overrides", arguments->overrides,
                   "section.key=value; replaces what the file says")
      ->type_name("KEY=VALUE");
  verb->add_option("--workers", arguments->workers,
                   "Local workers to start, beside servers.dedicated servers; leave it out under "
                   "torchrun, Slurm or Open MPI")
      ->check(CLI::Range(1, kMostRanks));
  verb->add_option("--master-port", arguments->master_port,
                   "Port of the ranks' store; 0: a free one")
      ->check(CLI::Range(0, 65535));
  verb->add_option("--trace", arguments->trace,
                   "train.trace: record what each rank did in steps 2 to 4, for distca trace and "
                   "Perfetto")
      ->type_name("FILE");
  verb->add_flag("--print-config", arguments->print_config,
                 "Print every key with value, unit and reason, and stop");
  verb->footer("Example:  distca train --config configs/demo.toml --workers 2 train.steps=50");
  verb->callback([=] { *exit_code = run_train(*arguments); });
}

}  // namespace distca::cli
