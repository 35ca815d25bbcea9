#pragma once
// `--workers N`: local processes of the same program. The launcher hosts the store, prefixes what
// ranks print, learns of deaths by waitpid and publishes them, ends all when one fails, and reports
// the first failure once.
//
// Output: rank 0's stdout is ours, untouched (a terminal stays one); everything else passes line by
// line with "[rank N] " before it. Lines on stderr that begin with "distca: " are a rank's last
// words: they are held back and only the first failure's, or rank 0's when the run is stopped, is
// printed, unprefixed. Who reads our output slowly or not at all holds up nothing (console.h).
// Thread rule: call from the main thread of a program that has no other thread; it handles SIGINT,
// SIGTERM and SIGHUP while it runs, but for those that are ignored.

#include <string>
#include <vector>

namespace distca {

struct LaunchOptions {
  int workers = 1;
  std::vector<std::string> command;  // program and arguments, run once for each rank
  int port = 0;                      // of the store, on the loopback interface; 0: a free one
  double timeout_s = 60;  // with grace_s: for ranks to end once the first one has ended well; rank
                          // 0, which may save, is given it anew with each sign of life
  double grace_s = 5;     // seconds ranks have to end by themselves after one failed
};

/// The exit code of the run: 0, also if a rank had to be killed after its work was done; what the
/// first rank to fail returned; 1 if it was killed; 130 after SIGINT, SIGTERM or SIGHUP. When it
/// returns, no process of the run is left. Throws Error(kConfig) naming the port if it is in use,
/// Error(kIo) if no process can be made.
int launch_local(const LaunchOptions& options);

}  // namespace distca
