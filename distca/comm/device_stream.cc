#include "distca/comm/device_stream.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

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

}  // namespace distca
