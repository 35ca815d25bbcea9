// distca train: as one process, as a launcher of local ranks, or as a rank that somebody started.

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>

#include "cli/options.h"
#include "cli/train_request.h"
#include "distca/base/console.h"
#include "distca/base/env.h"
#include "distca/base/error.h"
#include "distca/base/heap.h"
#include "distca/base/stop_signals.h"
#include "distca/checkpoint/folder.h"
#include "distca/checkpoint/index.h"
#include "distca/comm/device_copy.h"
#include "distca/comm/device_facts.h"
#include "distca/comm/gloo_group.h"
#include "distca/comm/launch/launch.h"
#include "distca/comm/launch/rendezvous.h"
#include "distca/comm/launch/store_process.h"
#include "distca/comm/local_device.h"
#include "distca/comm/nccl/nccl_group.h"
#include "distca/comm/thread_group.h"
#include "distca/config/config.h"
#include "distca/config/run_grid.h"
#include "distca/report/run_folder.h"
#include "distca/train/check_run.h"
#include "distca/train/exit_time.h"
#include "distca/train/resume.h"
#include "distca/train/start_weights.h"
#include "distca/train/trainer.h"

namespace distca::cli {
namespace {

/// Where the run is. A signal to this process asks the run to stop; before it trains, and the
/// second time, it ends the process, which says where the run was.
struct RunSignals {
  explicit RunSignals(const Config& config)
      : state(std::make_shared<RunState>(config.train.output_dir, config.train.steps)),
        stop([state = state](int signal) { return state->request_stop(signal); },
             [state = state](const std::string& signal) { return state->stopped_by(signal); }) {}

  std::shared_ptr<RunState> state;
  StopSignals stop;
};

/// The group of this process's rank.
std::unique_ptr<Communicator> join_ranks(const Config& config, const Rendezvous& rendezvous,
                                         int cuda_device) {
  if (!config.has_nccl()) return make_gloo_group(rendezvous, config.comm);
  const NcclLibrary& nccl = nccl_library();
  if (cuda_device < 0)
    return make_nccl_group(rendezvous, config.comm, nccl, host_nccl_device(nccl));
  NcclDevice device = cuda_nccl_device(cuda_device);
  if (local_devices().may_share) device.identity.clear();
  return make_nccl_group(rendezvous, config.comm, nccl, device);
}

TrainEnd train_as_rank(const Config& config, const Rendezvous& rendezvous, const RunStart& start) {
  const auto store = start_store_process(rendezvous, config.comm.grace_s);
  const RunSignals signals(config);  // starts a thread: after the store's process was forked
  const int device =
      config.on_cuda() ? use_local_device(rendezvous.local_rank, local_devices()) : -1;
  const std::shared_ptr<void> of_thread = device < 0 ? nullptr : begin_device_rank(device);
  const std::unique_ptr<Communicator> comm = join_ranks(config, rendezvous, device);
  return train(config, *comm, *signals.state, start);
}

/// Ranks that are threads of this process.
TrainEnd train_as_threads(const Config& config, int ranks, const RunStart& start) {
  const ThreadDevice device = config.on_cuda() ? cuda_thread_device(0) : ThreadDevice{};
  const RunSignals signals(config);
  TrainEnd end;
  run_ranks(
      ranks, config.comm,
      [&](Communicator& comm) {
        const TrainEnd of_rank = train(config, comm, *signals.state, start);
        if (comm.rank() == 0) end = of_rank;
      },
      device);
  return end;
}

/// Calls `run`, whose errors say more about the ranks that they name.
template <typename Run>
TrainEnd with_named_ranks(const RunGrid& grid, const Run& run) {
  try {
    return run();
  } catch (const Error& error) {
    const std::string named = grid.named(error.what());
    if (named == error.what()) throw;
    throw Error(error.kind(), "{}", named);
  }
}

/// Says how a run has ended; gives the exit code. A batch system that asked it to stop in time is
/// content; a shell shall know of Ctrl-C.
int report(const TrainEnd& end) {
  if (!end.words.empty()) say_last("distca: " + end.words);
  return end.stopped_by == SIGINT ? kStoppedExitCode : 0;
}

ResumeRequest resume_request(const TrainArguments& arguments) {
  using Kind = ResumeRequest::Kind;
  if (!arguments.resume) return {.kind = Kind::kNo};
  if (arguments.resume->empty()) return {.kind = Kind::kNewest};
  if (*arguments.resume == "if-any") return {.kind = Kind::kIfAny};
  const std::filesystem::path path = *arguments.resume;
  const bool ends_in_slash = path.has_relative_path() && !path.has_filename();
  return {.kind = Kind::kPath, .path = ends_in_slash ? path.parent_path() : path};
}

/// Returns true if a checkpoint that is damaged may be passed over: not if the user has named it.
bool passes_over(const ResumeRequest& request, const Launch& launch,
                 const std::filesystem::path& checkpoint) {
  return request.kind != ResumeRequest::Kind::kPath ||
         (launch.restart > 0 && checkpoint != find_checkpoints(request.path).newest());
}

/// The checkpoint that the run goes on from, and those before it if that may be damaged.
void choose_start(const ResumeRequest& request, const Config& config, const Launch& launch,
                  bool warns, RunStart* start) {
  start->checkpoint = choose_checkpoint(request, config, launch, warns);
  if (!start->checkpoint || !passes_over(request, launch, *start->checkpoint)) return;
  start->older_checkpoint = [=, &config](int64_t step) {
    return choose_checkpoint(request, config, launch, /*warns=*/true, step);
  };
}

/// The command that runs this rank again: the same words, without the launcher's own options.
std::vector<std::string> rank_command(const TrainArguments& arguments) {
  std::vector<std::string> command = {std::filesystem::read_symlink("/proc/self/exe"), "train"};
  if (!arguments.config.empty()) command.insert(command.end(), {"--config", arguments.config});
  command.insert(command.end(), arguments.overrides.begin(), arguments.overrides.end());
  if (arguments.resume)
    command.push_back("--resume" + (arguments.resume->empty() ? "" : "=" + *arguments.resume));
  return command;
}

/// Returns true if this process, which nobody else launched, starts others.
bool launches(const TrainArguments& arguments, const Config& config, int ranks) {
  return !config.ranks_are_threads() && (ranks > 1 || arguments.max_restarts > 0);
}

/// Starts the ranks of a run that was checked, or is one of them.
int start_ranks(const TrainArguments& arguments, const Config& config, int workers,
                const std::optional<Rendezvous>& rendezvous, const RunStart& start) {
  const RunGrid grid = run_grid(config, workers);
  const int ranks = grid.grid.num_ranks();
  if (grid.grid.stages > 1) keep_freed_memory();
  const bool own_launcher = !start.run_id.empty();  // it names the ranks in errors itself
  if (rendezvous && own_launcher) return report(train_as_rank(config, *rendezvous, start));
  if (rendezvous) {
    return report(
        with_named_ranks(grid, [&] { return train_as_rank(config, *rendezvous, start); }));
  }
  DISTCA_THROW_IF(
      arguments.max_restarts > 0 && config.ranks_are_threads(), ErrorKind::kUsage,
      "--max-restarts with comm.backend = threads: ranks that are threads end together, "
      "and nobody starts them again; use {}",
      config.on_cuda() ? "nccl" : "gloo");
  if (config.has_nccl() && config.on_cuda()) check_local_devices(ranks, local_devices());
  if (!launches(arguments, config, ranks))
    return report(with_named_ranks(grid, [&] { return train_as_threads(config, ranks, start); }));
  return launch_local({.workers = ranks,
                       .command = rank_command(arguments),
                       .port = arguments.master_port,
                       .timeout_s = config.comm.timeout_s,
                       .grace_s = config.comm.grace_s,
                       .stop_grace_s = config.checkpoint.grace_s,
                       .max_restarts = arguments.max_restarts,
                       .named = [&](const std::string& text) { return grid.named(text); }});
}

}  // namespace

int run_train(const TrainArguments& arguments, const TrainRequest& request) {
  const auto& [config, rendezvous, workers, local] = request;
  // Before CUDA begins. By default streams share 8 queues of the driver, in which those of ranks on
  // one device would wait behind each other.
  if (config.on_cuda() && config.ranks_are_threads())
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  // Whoever read our output may go; training goes on, and ranks inherit this.
  std::signal(SIGPIPE, SIG_IGN);
  const bool is_first = request.is_first();
  if (is_first && this_launch().run_id.empty()) say_notes(config.notes);
  const int64_t device_cap_bytes = check_run(config, workers, local);
  const int ranks = num_ranks(config, workers);
  const Launch launch = this_launch();
  const ResumeRequest resume = resume_request(arguments);
  RunStart start{.run_id = launch.run_id,
                 .device_cap_bytes = device_cap_bytes,
                 .begin_s = launch_begin_s(env_string(kStartedAt))};
  // The others do not look before rank 0 has made the folder: a client of NFS that has not found a
  // folder would not see it for a while. A launcher leaves warnings to its rank 0, which looks
  // again.
  if (is_first)
    choose_start(resume, config, launch, rendezvous || !launches(arguments, config, ranks), &start);
  const bool is_new = resume.kind == ResumeRequest::Kind::kNo && launch.restart == 0;
  if (!start.checkpoint && (is_first || is_new)) check_start_weights(config);
  // Only rank 0 writes, so what lies on other machines' disks does not matter.
  if (is_first) {
    const bool own = start.checkpoint && is_own_checkpoint(*start.checkpoint, config);
    check_run_folder(config.train.output_dir,
                     {.overwrite = config.train.overwrite,
                      .goes_on_after = own ? read_checkpoint_index(*start.checkpoint).step : 0});
  }
  DISTCA_THROW_IF(
      rendezvous && arguments.workers > 1, ErrorKind::kUsage,
      "--workers {}, but {} started this process as one of {} ranks: leave --workers out",
      arguments.workers, rendezvous->source, rendezvous->size);
  DISTCA_THROW_IF(rendezvous && config.ranks_are_threads(), ErrorKind::kConfig,
                  "comm.backend = threads, but {} started this process as one of {} ranks: use {}",
                  rendezvous->source, rendezvous->size, config.on_cuda() ? "nccl" : "gloo");
  set_up_process(config);
  return start_ranks(arguments, config, workers, rendezvous, start);
}

}  // namespace distca::cli
