#pragma once
// Where the messages of a rank lie that talks through NCCL, and in which order the device does what
// it is given: a CUDA device, or host memory with a library that has streams for it.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "distca/comm/nccl/nccl_library.h"
#include "distca/comm/thread_group.h"

namespace distca {

/// A rank's device. It has a current stream, which is the calling thread's, and a communication
/// stream, in which NCCL moves messages. Any thread may call the functions.
struct NcclDevice {
  int cuda_device = -1;
  /// Identifies the device among those of all machines. Two ranks with the same one are refused.
  /// Empty means that any number of ranks may share it.
  std::string identity = {};
  /// The communication stream, as NCCL takes it, and what keeps it.
  void* stream = nullptr;
  std::shared_ptr<void> owner = {};
  /// Makes the device the calling thread's. It may be null.
  std::function<void()> make_current = {};
  /// Memory of the device.
  std::function<std::shared_ptr<std::byte>(int64_t bytes)> allocate = {};
  /// Marks the end of everything that the calling thread has given the current stream so far.
  std::function<DeviceMark()> mark = {};
  /// Makes the communication stream wait for the mark before what it is given from now on.
  std::function<void(const DeviceMark&)> communicate_behind = {};
  /// Marks the end of what the communication stream has been given so far.
  std::function<DeviceMark()> mark_communication = {};
  std::function<bool(const DeviceMark&)> has_passed = {};
  /// Makes the current stream wait for the mark before what the calling thread gives it from now
  /// on. Where the thread itself does that work at once, it waits for the mark, at most so many
  /// seconds, and returns whether the mark has been passed; elsewhere it returns true at once.
  std::function<bool(const DeviceMark&, double seconds)> follow = {};
};

/// A device of this process, with a communication stream of high priority.
NcclDevice cuda_nccl_device(int cuda_device);

/// Host memory: each thread does at once what it does. The library must have host streams (CHECK).
NcclDevice host_nccl_device(const NcclLibrary& nccl);

}  // namespace distca
