#pragma once
// One attempt of a launch (launch.h): starts local ranks and their store, passes on what they
// print, and returns when all of them have ended. Thread rule: as launch_local.

#include <csignal>
#include <string>

#include "distca/base/error.h"
#include "distca/comm/launch/launch.h"

namespace distca {

struct Attempt {
  std::string run_id;       // all attempts of one launch have the same
  int restart = 0;          // attempts that failed before
  int signals = -1;         // a signalfd of SIGCHLD and of the signals that stop a run
  sigset_t rank_mask = {};  // the signals that ranks block
};

struct Ended {
  ExitMessage words;  // its line has not been said yet
  bool interrupted = false;
};

/// Throws Error(kConfig) naming the port if it is in use, Error(kIo) if no process can be made.
Ended run_local_ranks(const LaunchOptions& options, const Attempt& attempt);

}  // namespace distca
