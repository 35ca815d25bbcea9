#pragma once
// Reads of a device by the host, and copies from the host to a device. A read waits until the
// device has done all that its stream was given before, and while the host waits, the device gets
// nothing new. So every read of a tensor goes through these functions, which note it, and a step
// reads nothing between its first and its last layer. scripts/check_host_reads.py refuses other
// ways.
//
//     const at::Tensor ids = upload(at::tensor(numbers, at::kLong), device);  // waits for nothing
//     const at::Tensor losses = host_copy(at::cat(losses_of_device));         // one wait for all
//
// Tensors on the CPU are read where they are. Such reads are noted as well, so that a test sees
// without a device what would wait for one.
//
// Thread rule: any thread; a log notes the reads of the thread that made it.

#include <vector>

namespace at {
class Tensor;
}
namespace c10 {
struct Device;
}

namespace distca {

/// The tensor in host memory: itself, if it is there already.
at::Tensor host_copy(const at::Tensor& tensor);
/// Copies a tensor to `host`, which has its size and type.
void read_to(const at::Tensor& host, const at::Tensor& tensor);
/// The number that a tensor of one element holds.
double host_number(const at::Tensor& tensor);

/// A host tensor on `device`; itself, if that is the CPU. The copy is made from page-locked memory
/// and runs behind what the current stream was given. `host` may change once this has returned.
at::Tensor upload(const at::Tensor& host, const c10::Device& device);

/// Notes when this thread reads, as long as it lives. A log that is made meanwhile takes over.
class HostReadLog {
 public:
  HostReadLog();
  ~HostReadLog();
  HostReadLog(const HostReadLog&) = delete;
  HostReadLog& operator=(const HostReadLog&) = delete;

  /// The times of all reads so far, on the steady clock (base/clock.h).
  const std::vector<double>& seconds() const { return seconds_; }

 private:
  friend void note_host_read();
  HostReadLog* outer_;
  std::vector<double> seconds_;
};

}  // namespace distca
