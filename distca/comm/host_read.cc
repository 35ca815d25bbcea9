#include "distca/comm/host_read.h"

#include <ATen/ATen.h>

#include "distca/base/clock.h"

namespace distca {
namespace {

thread_local HostReadLog* log = nullptr;

}  // namespace

void note_host_read() {
  if (log != nullptr) log->seconds_.push_back(steady_seconds());
}

HostReadLog::HostReadLog() : outer_(log) { log = this; }
HostReadLog::~HostReadLog() { log = outer_; }

at::Tensor host_copy(const at::Tensor& tensor) {
  note_host_read();
  return tensor.detach().cpu();
}

void read_to(const at::Tensor& host, const at::Tensor& tensor) {
  note_host_read();
  host.copy_(tensor);
}

double host_number(const at::Tensor& tensor) {
  note_host_read();
  return tensor.item<double>();
}

at::Tensor upload(const at::Tensor& host, const c10::Device& device) {
  if (device.is_cpu()) return host;
  return host.pin_memory().to(device, /*non_blocking=*/true);
}

}  // namespace distca
