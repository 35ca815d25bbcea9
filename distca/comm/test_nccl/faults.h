#pragma once
// What the stand-in for NCCL does wrong, as tests ask for it. Any thread.

#include <cstdint>
#include <string>

namespace standin {

enum class FaultKind {
  kNone,
  kDelay,   // a group of sends and receives begins late
  kHang,    // it never begins
  kError,   // it never begins, and the communicator reports an error
  kRefuse,  // the call that would issue it fails
  kBlock,   // the call that would issue it does not return before the communicator is aborted
};

/// What happens to the `group`-th group (from 0: the one that connects all ranks) of a rank.
struct Fault {
  FaultKind kind = FaultKind::kNone;
  int64_t delay_us = 0;
};
Fault fault_of(int rank, int64_t group);
/// Whether a rank never comes to an end of connecting.
bool hangs_at_start(int rank);

}  // namespace standin
