#pragma once
// Two network namespaces of this machine, joined by a veth pair whose two directions a token bucket
// limits: two machines with a slow wire between them, as far as TCP can tell. Needs root and
// iproute2. Thread rule: one thread, and no other when processes are started.

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

namespace distca::bench {

/// What a program that was run to its end left.
struct Ran {
  int exit_code = 0;   // 127: it could not be started
  std::string output;  // standard output and error, without the last newline
};
Ran run_program(const std::vector<std::string>& command);

class NamespacePair {
 public:
  /// Each end's interface, in its namespace.
  static constexpr const char* kInterface = "wire";

  /// Named after this process; those of processes that were killed are removed. Throws Error(kIo)
  /// with the command that failed and what it said.
  NamespacePair();
  ~NamespacePair();
  NamespacePair(const NamespacePair&) = delete;
  NamespacePair& operator=(const NamespacePair&) = delete;

  /// Runs `command` once in each namespace, as ranks 0 and 1 of a group whose store rank 0 keeps
  /// (comm/launch/rendezvous.h, torchrun's variables). The exit code of the first to fail; 130
  /// after a signal that ends programs, which ends both. When it returns, no process of the run is
  /// left.
  int run(const std::vector<std::string>& command) const;

  std::string name(int end) const;
  static std::string address(int end);

 private:
  class HeldSignals;
  void make(int end);
  void remove();
  pid_t start(int rank, const std::vector<std::string>& command) const;

  std::unique_ptr<HeldSignals> signals_;  // while there is something to remove
};

/// A token bucket, as tc's tbf takes it, of `mb_per_s` million bytes a second.
struct TokenBucket {
  long long rate = 0;  // bytes a second, headers included
  long long burst =
      0;  // bytes that may pass at once: below a segment of 64 KiB as TCP hands it down
          // the kernel cuts every one into packets, at many times the processor time
  long long limit = 0;  // bytes that may wait
};
TokenBucket token_bucket(double mb_per_s);

/// Limits what the calling process's namespace sends; 0: no limit. Throws Error(kIo).
void limit_rate(double mb_per_s);

/// Why this process cannot have namespaces; empty where nothing is in the way. Tries it.
std::string why_no_namespaces();

}  // namespace distca::bench
