#pragma once
// `--workers N`: local processes of the same program. The launcher hosts the store, prefixes what
// ranks print, learns of deaths by waitpid and posts them, ends all when one fails, and reports the
// first failure once.
//
// Output: rank 0's stdout is ours, untouched (a terminal stays one); everything else passes line by
// line with "[rank N] " before it. Lines on stderr that begin with "distca: " are a rank's last
// words: they are held back and only the first failure's is printed, unprefixed.
// Thread rule: call from the main thread of a program that has no other thread; it handles SIGINT
// and SIGTERM while it runs.

#include <string>
#include <vector>

namespace distca {

struct LaunchOptions {
  int workers = 1;
  std::vector<std::string> command;  // program and arguments, run once for each rank
  int port = 0;                      // of the store, on the loopback interface; 0: a free one
  double grace_s = 5;                // seconds ranks have to end by themselves after one failed
};

/// The exit code of the run: 0; what the first rank to fail returned; 1 if it was killed; 130 after
/// SIGINT or SIGTERM. When it returns, no process of the run is left.
/// Throws Error(kConfig) naming the port if it is in use, Error(kIo) if no process can be made.
int launch_local(const LaunchOptions& options);

}  // namespace distca
