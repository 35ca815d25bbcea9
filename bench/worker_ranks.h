#pragma once
// A benchmark as several ranks: the program starts itself once a rank, as local processes that talk
// through Gloo. Thread rule: call it first thing, from the main thread.

#include <functional>
#include <span>
#include <string>

#include "distca/comm/communicator.h"

namespace distca::bench {

struct WorkerRanks {
  std::string program;  // in error lines: "bench/training"
  int ranks = 2;
  CommOptions comm;
};

/// Runs `body` on every rank and returns the exit code for main. A process that nobody started as a
/// rank starts `options.ranks` of itself with the same `arguments` (argv) and waits for them; rank
/// 0's standard output is the program's. A process that somebody did start as one
/// (comm/launch/rendezvous.h) meets the others and calls `body`, with one thread for PyTorch; rank
/// r and all its threads are pinned to the core r mod cores, of those allowed. An Error of `body`
/// is one line on standard error and its exit code.
int run_worker_ranks(const WorkerRanks& options, std::span<char* const> arguments,
                     const std::function<void(Communicator&)>& body);

}  // namespace distca::bench
