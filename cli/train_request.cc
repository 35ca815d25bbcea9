#include "cli/train_request.h"

#include <algorithm>
#include <cstdio>
#include <memory>

#include "cli/options.h"
#include "cli/verbs.h"
#include "distca/base/env.h"
#include "distca/base/error.h"
#include "distca/comm/device_facts.h"
#include "distca/comm/launch/local_ranks.h"
#include "distca/config/run_grid.h"
#include "distca/forecast/checked_data.h"
#include "distca/forecast/dry_run.h"

namespace distca::cli {
namespace {

/// The ranks that share this machine's memory.
LocalRanks ranks_here(const Config& config, int workers,
                      const std::optional<Rendezvous>& rendezvous) {
  if (!rendezvous) return {.count = num_ranks(config, workers)};
  const int count = local_ranks(*rendezvous, env_string);
  if (count == 1) return {.first = rendezvous->rank};
  // Launchers number the ranks of a machine one after another unless told otherwise.
  const int first = rendezvous->rank - rendezvous->local_rank;
  return {.first = std::clamp(first, 0, rendezvous->size - count), .count = count};
}

/// Says what the run would be. It ends as the run would if its memory does not suffice.
void report_dry_run(const Config& config, int workers, LocalRanks local,
                    const std::filesystem::path& lengths, bool speaks) {
  const std::vector<DeviceFacts> devices =
      config.on_cuda() ? visible_devices() : std::vector<DeviceFacts>();
  const DryRun run = dry_run(config, workers, local, lengths, devices);
  if (speaks) fmt::print("{}", dry_run_text(config, workers, run));
  if (!config.on_cuda()) check_memory(run.needed, local, memory_limit());
  check_device_memory(config, workers, local, devices, &run.plans);
}

/// The run that is asked for, or nothing if all that was asked for has been done.
std::optional<TrainRequest> request_of(TrainArguments& arguments) {
  if (!arguments.trace.empty()) arguments.overrides.push_back("train.trace=" + arguments.trace);
  if (arguments.resume && arguments.resume->find('=') != std::string::npos) {
    // `--resume KEY=VALUE`: the value is optional, and this word is not one.
    arguments.overrides.push_back(*arguments.resume);
    arguments.resume = "";
  }
  TrainRequest request{.config = load_config(arguments.config, arguments.overrides)};
  const Config& config = request.config;
  if (arguments.print_config) {
    std::fputs(print_config(config).c_str(), stdout);
    return {};
  }
  DISTCA_THROW_IF(!arguments.lengths.empty() && !arguments.dry_run, ErrorKind::kUsage,
                  "--lengths has no tokens to train on: give --dry-run, too");
  request.rendezvous = find_rendezvous(env_string);
  request.workers = workers_of(config, arguments.workers, request.rendezvous);
  request.local = ranks_here(config, request.workers, request.rendezvous);
  if (!arguments.dry_run) {
    check_prefix(config);
    if (!config.on_cuda())
      check_memory(memory_needed(config, request.workers, request.local), request.local,
                   memory_limit());
    return request;
  }
  if (request.is_first()) say_notes(config.notes);
  report_dry_run(config, request.workers, request.local, arguments.lengths, request.is_first());
  return {};
}

}  // namespace

int workers_of(const Config& config, int workers, const std::optional<Rendezvous>& rendezvous) {
  const int64_t dedicated = config.servers.dedicated;
  if (rendezvous) {
    DISTCA_THROW_IF(dedicated >= rendezvous->size, ErrorKind::kConfig,
                    "servers.dedicated = {}: {} started {} ranks, of which at least one must be a "
                    "worker",
                    dedicated, rendezvous->source, rendezvous->size);
    return rendezvous->size - static_cast<int>(dedicated);
  }
  DISTCA_THROW_IF(num_ranks(config, workers) > kMostRanks, ErrorKind::kConfig,
                  "--workers {} and servers.dedicated = {}: more than {} processes of one machine",
                  workers, dedicated, kMostRanks);
  return workers;
}

void add_train(CLI::App& app, int* exit_code, StartTraining start) {
  auto arguments = std::make_shared<TrainArguments>();
  CLI::App* verb =
      app.add_subcommand("train", "Train a Llama, Mistral or Qwen on a prepared data set");
  verb->add_option("--config", arguments->config, "TOML file; without it, defaults")
      ->type_name("FILE");
  verb->add_option("overrides", arguments->overrides,
                   "section.key=value; replaces what the file says")
      ->type_name("KEY=VALUE");
  verb->add_option(
          "--workers", arguments->workers,
          "Local workers to start, which hold weights: stages x replicas x tensor; beside them "
          "servers.dedicated servers; leave it out under torchrun, Slurm or Open MPI")
      ->check(in_range(1, kMostRanks));
  verb->add_option("--master-port", arguments->master_port,
                   "Port of the ranks' store; 0: a free one")
      ->check(in_range(0, 65535));
  verb->add_option("--trace", arguments->trace,
                   "train.trace: record what each rank did in steps 2 to 4, for distca trace and "
                   "Perfetto")
      ->type_name("FILE");
  verb->add_option(
          "--resume", arguments->resume,
          "Go on from the newest checkpoint of train.output_dir, from that of a PATH (a run "
          "or a checkpoint), or, with if-any, from the newest one if there is one")
      ->type_name("[PATH|if-any]")
      ->expected(0, 1);
  verb->add_option("--max-restarts", arguments->max_restarts,
                   "Start all local ranks again, from the last checkpoint, if one is lost; at most "
                   "so many times")
      ->check(in_range(0, 1000));
  verb->add_flag("--print-config", arguments->print_config,
                 "Print every key with value, unit and reason, and stop");
  verb->add_flag("--dry-run", arguments->dry_run,
                 "Check the configuration, print the model's parameters and the memory of a rank, "
                 "part by part, and stop; no data set is needed");
  verb->add_option("--lengths", arguments->lengths,
                   "With --dry-run: JSON list of document lengths in place of a data set")
      ->type_name("FILE");
  verb->footer("Example:  distca train --config configs/demo.toml --workers 2 train.steps=50");
  verb->callback([=] {
    const std::optional<TrainRequest> request = request_of(*arguments);
    if (request) *exit_code = start(*arguments, *request);
  });
}

}  // namespace distca::cli
