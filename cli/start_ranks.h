#pragma once
// The ranks of a verb: threads of this process, processes that it launches, or this process as one
// of those that somebody has started.
//
//     const std::optional<int> launched = start_ranks({.config = config, .workers = 2, ...});
//
// Thread rule: one thread, of a program that has no other yet.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "distca/comm/communicator.h"
#include "distca/comm/launch/rendezvous.h"
#include "distca/config/config.h"

namespace distca::cli {

/// The work of a rank, which all ranks do together.
using RankWork = std::function<void(Communicator&)>;

struct RankStart {
  const Config& config;
  int workers = 1;  // ranks that hold weights; servers.dedicated more compute attention alone
  const std::optional<Rendezvous>& rendezvous;  // nothing unless somebody started this process
  /// Called once in a process that has ranks, before they meet. It may start threads.
  std::function<RankWork()> begin;
  std::vector<std::string> command;  // a launched process runs it
  int port = 0;                      // where the ranks' store listens. 0 takes a free one.
  int max_restarts = 0;
  bool names_ranks = true;  // errors say more about the ranks that they name
};

/// To be called before CUDA begins.
void prepare_device(const Config& config);

/// Returns true if this process, which nobody else launched, starts others.
bool launches_ranks(const Config& config, int ranks, int max_restarts);

/// Throws Error if --workers or comm.backend do not fit how this process was started.
void check_launch(const Config& config, const std::optional<Rendezvous>& rendezvous, int workers);

/// Returns when the ranks have done their work: the exit code of those that it launched, or nothing
/// if they were ranks of this process. Throws what they throw.
std::optional<int> start_ranks(const RankStart& start);

}  // namespace distca::cli
