#pragma once
// `--workers N`: local processes of the same program. The launcher hosts the store, prefixes what
// ranks print, learns of deaths by waitpid and publishes them, ends all when one fails, reports the
// first failure once, and starts all ranks again if it may.
//
//     launch_local({.workers = 2, .command = {"distca", "train"}, .max_restarts = 3});
//
// Output: rank 0's stdout is ours, untouched (a terminal stays one); everything else passes line by
// line with "[rank N] " before it. Lines on stderr that begin with "distca: " are a rank's last
// words: they are held back and only the first failure's, or rank 0's when the run is stopped, is
// printed, unprefixed. Who reads our output slowly or not at all holds up nothing (console.h).
//
// Stop: at the first SIGINT, SIGTERM, SIGHUP or SIGUSR1 all ranks get the signal and may finish
// their step, save, and end by themselves. A second signal kills them.
//
// Restart: where a run fails for another reason than bad input or training that went wrong (exit
// codes 2 and 3), and nobody has stopped it, all ranks are started again, with a store of their
// own. They find in their environment
//
//     DISTCA_RUN_ID   the same for all attempts of one launch and unlike for any two launches; one
//                     that the launcher finds in its own environment is passed on
//     DISTCA_RESTART  attempts that failed before: 0, 1, 2, ...
//
// Thread rule: call from the main thread of a program that has no other thread; it handles the
// signals above while it runs, but for those that are ignored.

#include <functional>
#include <string>
#include <vector>

namespace distca {

struct LaunchOptions {
  int workers = 1;
  std::vector<std::string> command;  // program and arguments, run once for each rank
  int port = 0;                      // The store's, on the loopback interface. 0 means a free one.
  double timeout_s = 60;  // with grace_s: for ranks to end once the first one has ended well; rank
                          // 0, which may save, is given it anew with each sign of life
  double grace_s = 5;     // seconds ranks have to end by themselves after one failed
  double stop_grace_s = 600;  // seconds ranks have after a signal to finish their step and save
  int max_restarts = 0;
  /// Says in the exit message of a run more about the ranks that they name. An empty one adds
  /// nothing.
  std::function<std::string(std::string)> named = {};
};

/// The exit code of the run: 0, also if a rank had to be killed after its work was done; what the
/// first rank to fail returned in the last attempt; 1 if it was killed. After a signal: what rank 0
/// returned, 0 or 130; 130 if the ranks ended without having saved; the exit code of a rank that
/// failed meanwhile. When it returns, no process of the run is left. Throws Error(kConfig) naming
/// the port if it is in use, Error(kIo) if no process can be made.
int launch_local(const LaunchOptions& options);

}  // namespace distca
