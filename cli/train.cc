// distca train: as one process, as a launcher of local ranks, or as a rank that somebody started.

#include <csignal>
#include <cstdio>
#include <filesystem>

#include "cli/options.h"
#include "cli/start_ranks.h"
#include "cli/train_request.h"
#include "distca/base/console.h"
#include "distca/base/env.h"
#include "distca/base/error.h"
#include "distca/base/stop_signals.h"
#include "distca/checkpoint/folder.h"
#include "distca/checkpoint/index.h"
#include "distca/config/config.h"
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

/// Starts the ranks of a run that was checked, or is one of them.
int train_ranks(const TrainArguments& arguments, const TrainRequest& request,
                const RunStart& start) {
  const Config& config = request.config;
  TrainEnd end;
  const auto begin = [&]() -> RankWork {
    return [&, signals = std::make_shared<RunSignals>(config)](Communicator& comm) {
      const TrainEnd of_rank = train(config, comm, *signals->state, start);
      if (request.rendezvous || comm.rank() == 0) end = of_rank;
    };
  };
  const std::optional<int> launched =
      start_ranks({.config = config,
                   .workers = request.workers,
                   .rendezvous = request.rendezvous,
                   .begin = begin,
                   .command = rank_command(arguments),
                   .port = arguments.master_port,
                   .max_restarts = arguments.max_restarts,
                   // The launcher that gave the run its id names the ranks in errors itself.
                   .names_ranks = start.run_id.empty()});
  return launched ? *launched : report(end);
}

}  // namespace

int run_train(const TrainArguments& arguments, const TrainRequest& request) {
  const auto& [config, rendezvous, workers, local] = request;
  prepare_device(config);
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
    choose_start(resume, config, launch,
                 rendezvous || !launches_ranks(config, ranks, arguments.max_restarts), &start);
  const bool is_new = resume.kind == ResumeRequest::Kind::kNo && launch.restart == 0;
  if (!start.checkpoint && (is_first || is_new)) check_start_weights(config);
  // Only rank 0 writes, so what lies on other machines' disks does not matter.
  if (is_first) {
    const bool own =
        start.checkpoint && is_checkpoint_of(config.train.output_dir, *start.checkpoint);
    const int64_t after = own ? read_checkpoint_index(*start.checkpoint).step : 0;
    check_run_folder(config.train.output_dir, {.overwrite = config.train.overwrite,
                                               .goes_on_after = after,
                                               .trains = !own || config.train.steps > after});
  }
  check_launch(config, rendezvous, arguments.workers);
  set_up_process(config);
  return train_ranks(arguments, request, start);
}

}  // namespace distca::cli
