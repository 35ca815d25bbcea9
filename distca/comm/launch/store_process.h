#pragma once
// The store of a run under Slurm or Open MPI: a process that rank 0 forks first, so that rank 0's
// death is reported like any other's. Once rank 0 has ended it refuses newcomers, and it ends when
// all ranks have said how they ended, at the latest one grace period after rank 0: the next run may
// use the same port.
//
// Call before any thread exists (fork copies only the calling one).

#include <exception>
#include <memory>

#include "distca/base/file.h"
#include "distca/comm/launch/rendezvous.h"

namespace distca {

/// While it lives, rank 0 counts as alive; destroyed while no exception is under way, as done.
class StoreProcess {
 public:
  /// `alive`: a pipe to the process. When it is closed, as our death does, rank 0 is gone.
  explicit StoreProcess(int alive) : alive_(alive) {}
  ~StoreProcess();

 private:
  FileDescriptor alive_;
  const int exceptions_ = std::uncaught_exceptions();
};

/// Null where the store is there already, or for another rank to start. Throws Error(kConfig)
/// naming the port if it stays in use for a second.
std::unique_ptr<StoreProcess> start_store_process(const Rendezvous& rendezvous, double grace_s);

}  // namespace distca
