#pragma once
// Half a core: a process that computes without end beside the caller, on the caller's cores and
// with the same niceness. Thread rule: one thread.

#include <sys/types.h>

namespace distca::bench {

/// Stands still until it is told to run. Ends with its object, and with the thread that made it.
class BusyNeighbour {
 public:
  /// Throws Error(kIo) if no process can be made.
  BusyNeighbour();
  ~BusyNeighbour();
  BusyNeighbour(const BusyNeighbour&) = delete;
  BusyNeighbour& operator=(const BusyNeighbour&) = delete;

  /// Takes effect within a few milliseconds, and returns then.
  void run(bool busy);
  /// That it has used so far.
  double processor_seconds() const;

 private:
  struct Shared;
  Shared* shared_ = nullptr;
  pid_t process_ = -1;
};

}  // namespace distca::bench
