#include "cli/start_ranks.h"

#include <cstdlib>
#include <memory>

#include "distca/base/error.h"
#include "distca/base/heap.h"
#include "distca/comm/device_stream.h"
#include "distca/comm/gloo_group.h"
#include "distca/comm/launch/launch.h"
#include "distca/comm/launch/store_process.h"
#include "distca/comm/local_device.h"
#include "distca/comm/nccl/nccl_group.h"
#include "distca/comm/thread_group.h"
#include "distca/config/run_grid.h"

namespace distca::cli {
namespace {

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

void be_rank(const RankStart& start) {
  const Config& config = start.config;
  const auto store = start_store_process(*start.rendezvous, config.comm.grace_s);
  const RankWork work = start.begin();  // may start a thread: the store's process was forked
  const int device =
      config.on_cuda() ? use_local_device(start.rendezvous->local_rank, local_devices()) : -1;
  const std::shared_ptr<void> of_thread = device < 0 ? nullptr : begin_device_rank(device);
  work(*join_ranks(config, *start.rendezvous, device));
}

/// Calls `run`, whose errors say more about the ranks that they name, if `start` wants that.
template <typename Run>
void with_named_ranks(const RankStart& start, const RunGrid& grid, const Run& run) {
  try {
    run();
  } catch (const Error& error) {
    const std::string named = grid.named(error.what());
    if (!start.names_ranks || named == error.what()) throw;
    throw Error(error.kind(), "{}", named);
  }
}

}  // namespace

void prepare_device(const Config& config) {
  // By default streams share 8 queues of the driver, in which those of ranks on one device would
  // wait behind each other.
  if (config.on_cuda() && config.ranks_are_threads())
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
}

bool launches_ranks(const Config& config, int ranks, int max_restarts) {
  return !config.ranks_are_threads() && (ranks > 1 || max_restarts > 0);
}

void check_launch(const Config& config, const std::optional<Rendezvous>& rendezvous, int workers) {
  DISTCA_THROW_IF(
      rendezvous && workers > 1, ErrorKind::kUsage,
      "--workers {}, but {} started this process as one of {} ranks: leave --workers out", workers,
      rendezvous->source, rendezvous->size);
  DISTCA_THROW_IF(rendezvous && config.ranks_are_threads(), ErrorKind::kConfig,
                  "comm.backend = threads, but {} started this process as one of {} ranks: use {}",
                  rendezvous->source, rendezvous->size, config.on_cuda() ? "nccl" : "gloo");
}

std::optional<int> start_ranks(const RankStart& start) {
  const Config& config = start.config;
  const RunGrid grid = run_grid(config, start.workers);
  const int ranks = grid.num_ranks();
  keep_freed_memory();
  if (start.rendezvous) {
    with_named_ranks(start, grid, [&] { be_rank(start); });
    return {};
  }
  DISTCA_THROW_IF(
      start.max_restarts > 0 && config.ranks_are_threads(), ErrorKind::kUsage,
      "--max-restarts with comm.backend = threads: ranks that are threads end together, "
      "and nobody starts them again; use {}",
      config.on_cuda() ? "nccl" : "gloo");
  if (config.has_nccl() && config.on_cuda()) check_local_devices(ranks, local_devices());
  if (!launches_ranks(config, ranks, start.max_restarts)) {
    const ThreadDevice device = config.on_cuda() ? cuda_thread_device(0) : ThreadDevice{};
    with_named_ranks(start, grid, [&] { run_ranks(ranks, config.comm, start.begin(), device); });
    return {};
  }
  return launch_local({.workers = ranks,
                       .command = start.command,
                       .port = start.port,
                       .timeout_s = config.comm.timeout_s,
                       .grace_s = config.comm.grace_s,
                       .stop_grace_s = config.checkpoint.grace_s,
                       .max_restarts = start.max_restarts,
                       .named = [&](const std::string& text) { return grid.named(text); }});
}

}  // namespace distca::cli
