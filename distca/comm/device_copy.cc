#include "distca/comm/device_copy.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace distca {

ThreadDevice cuda_thread_device(int cuda_device) {
  const at::Device device(at::kCUDA, static_cast<int8_t>(cuda_device));
  auto synchronize = [device] {
    const c10::impl::VirtualGuardImpl cuda(at::kCUDA);
    cuda.synchronizeStream(cuda.getStream(device));
  };
  return {.cuda_device = cuda_device,
          .copy =
              [device, synchronize](std::byte* to, const std::byte* from, int64_t bytes) {
                const auto options = at::TensorOptions(at::kByte).device(device);
                const at::Tensor source =
                    at::from_blob(const_cast<std::byte*>(from), {bytes}, options);
                at::from_blob(to, {bytes}, options).copy_(source);
                synchronize();
              },
          .before_post = synchronize};
}

}  // namespace distca
