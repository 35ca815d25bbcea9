#pragma once
// Two network namespaces of this machine, joined by a veth pair whose two directions a token bucket
// limits: two machines with a slow wire between them, as far as TCP can tell. Needs root and
// iproute2. Thread rule: one thread.

#include <cstdint>
#include <string>
#include <vector>

namespace distca::bench {

/// The exit code and output of a shell command that was run to its end.
struct Ran {
  int exit_code = 0;   // 127: it could not be started
  std::string output;  // standard output and error, without the last newline
};
Ran run_program(const std::string& command);

class NamespacePair {
 public:
  /// Named after this process; those of processes that were killed are removed. Throws Error(kIo)
  /// with the command that failed and what it said.
  NamespacePair();
  ~NamespacePair();
  NamespacePair(const NamespacePair&) = delete;
  NamespacePair& operator=(const NamespacePair&) = delete;

  /// The command of a rank of our launcher (comm/launch/launch.h) that becomes the command behind
  /// it in the rank's namespace, where our launcher is not: rank 0 keeps the store, as under
  /// torchrun.
  std::vector<std::string> entering() const;

 private:
  void remove();
};

/// A token bucket, as tc's tbf takes it, of `mb_per_s` million bytes a second.
struct TokenBucket {
  int64_t rate = 0;   // bytes a second, headers included
  int64_t burst = 0;  // bytes that may pass at once: below a segment of 64 KiB as TCP hands it down
                      // the kernel cuts every one into packets, at many times the processor time
  int64_t limit = 0;  // bytes that may wait
};
TokenBucket token_bucket(double mb_per_s);

/// Limits the rate at which the calling process's namespace sends. 0 means no limit. Throws
/// Error(kIo).
void limit_rate(double mb_per_s);

}  // namespace distca::bench
