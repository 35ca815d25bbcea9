#include "distca/comm/device_stream.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "distca/comm/aten_types.h"

namespace distca {

c10::Stream current_stream(const c10::Device& device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

DeviceMark end_of(const c10::Stream& stream) {
  const auto event = std::make_shared<c10::Event>(stream.device_type());
  event->record(stream);
  return event;
}

void follow(const c10::Stream& stream, const DeviceMark& mark) {
  if (mark) static_cast<const c10::Event*>(mark.get())->block(stream);
}

bool has_passed(const DeviceMark& mark) {
  return !mark || static_cast<const c10::Event*>(mark.get())->query();
}

std::shared_ptr<void> begin_device_rank(int cuda_device) {
  return std::make_shared<c10::StreamGuard>(
      c10::impl::VirtualGuardImpl(at::kCUDA).getStreamFromGlobalPool(aten_device(cuda_device),
                                                                     /*isHighPriority=*/false));
}

ThreadDevice cuda_thread_device(int cuda_device) {
  const at::Device device = aten_device(cuda_device);
  const auto copy = [device](std::byte* to, const std::byte* from, int64_t bytes,
                             const DeviceMark& sender, const DeviceMark& receiver) {
    // Any stream of the pool will do: a copy depends on nothing but the two marks, and these on
    // work that was given to the device before them.
    const c10::Stream stream = c10::impl::VirtualGuardImpl(at::kCUDA).getStreamFromGlobalPool(
        device, /*isHighPriority=*/true);
    follow(stream, sender);
    follow(stream, receiver);
    const c10::StreamGuard guard(stream);
    const auto options = at::TensorOptions(at::kByte).device(device);
    const at::Tensor source = at::from_blob(const_cast<std::byte*>(from), {bytes}, options);
    at::from_blob(to, {bytes}, options).copy_(source);
    return end_of(stream);
  };
  return {.cuda_device = cuda_device,
          .mark = [device] { return end_of(current_stream(device)); },
          .copy = copy,
          .follow = [device](const DeviceMark& mark) { follow(current_stream(device), mark); },
          .begin_rank = [cuda_device] { return begin_device_rank(cuda_device); }};
}

}  // namespace distca
