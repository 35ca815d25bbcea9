#pragma once
// Faults of the stand-in for NCCL, as tests ask for them. Any thread.

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

/// The fault of a rank's `group`-th group. Group 0 is the one that connects all ranks.
struct Fault {
  FaultKind kind = FaultKind::kNone;
  int64_t delay_us = 0;
};
Fault fault_of(int rank, int64_t group);
/// Returns true if a rank never comes to an end of connecting.
bool hangs_at_start(int rank);

}  // namespace standin
