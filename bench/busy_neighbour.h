#pragma once
// Half a core: a process that computes without end beside the caller, on the caller's cores and
// with the same niceness. Thread rule: one thread.

#include <sys/types.h>

#include "bench/throttle.h"

namespace distca::bench {

/// Stands still until it is told to run. Ends with its object, and with the thread that made it.
class BusyNeighbour final : public Throttle {
 public:
  /// Throws Error(kIo) if no process can be made.
  BusyNeighbour();
  ~BusyNeighbour() override;
  BusyNeighbour(const BusyNeighbour&) = delete;
  BusyNeighbour& operator=(const BusyNeighbour&) = delete;

  /// Returns when it has taken effect.
  void run(bool busy) override;
  /// Processor time that it has used so far.
  double taken_seconds() const override;

 private:
  struct Shared;
  Shared* shared_ = nullptr;
  pid_t process_ = -1;
};

}  // namespace distca::bench
