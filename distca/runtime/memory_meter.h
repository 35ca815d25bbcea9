#pragma once
// How much memory the tensors of a rank take, now and at most.
//
//     MemoryMeter meter(/*cuda_device=*/-1);
//     // ... a step ...
//     metrics.peak = meter.peak_bytes();
//
// On a CPU, a tensor is counted from its making, by the meter of the thread that makes it, until it
// is freed, by whichever thread. So ranks that are threads are counted apart. On CUDA, PyTorch's
// own allocator counts, for all ranks that share the device. What is no tensor (the program,
// PyTorch's libraries, a mapped data set) is not counted; resident_peak_bytes() has it. Thread
// rule: a meter belongs to the thread that made it.

#include <cstdint>
#include <memory>

namespace distca {

struct MemoryCounter;  // an internal type

class MemoryMeter {
 public:
  /// From now on, the tensors that this thread makes are counted; the meter before it, if the
  /// thread had one, counts no more. `cuda_device` is -1 for the CPU.
  explicit MemoryMeter(int cuda_device);
  ~MemoryMeter();
  MemoryMeter(const MemoryMeter&) = delete;
  MemoryMeter& operator=(const MemoryMeter&) = delete;

  int64_t bytes() const;
  /// The most since the meter was made.
  int64_t peak_bytes() const;

 private:
  std::shared_ptr<MemoryCounter> counter_;  // its tensors may outlive the meter
  int cuda_device_;
};

/// The most memory that this process has had in RAM, in bytes; 0 where the system does not say.
int64_t resident_peak_bytes();

}  // namespace distca
