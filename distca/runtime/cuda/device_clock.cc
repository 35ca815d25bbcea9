#include "distca/runtime/cuda/device_clock.h"

#include <c10/core/Event.h>

#include <vector>

#include "distca/base/clock.h"
#include "distca/comm/device_stream.h"

namespace distca {
namespace {

class DeviceClock final : public OpClock {
 public:
  explicit DeviceClock(int cuda_device)
      : device_(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(cuda_device)) {}

  size_t mark() override {
    // The default flag keeps time.
    events_.emplace_back(c10::DeviceType::CUDA, c10::EventFlag::BACKEND_DEFAULT);
    events_.back().record(current_stream(device_));
    return events_.size() - 1;
  }

  std::vector<double> seconds() override {
    std::vector<double> seconds(events_.size());
    if (events_.empty()) return seconds;
    mark();
    const c10::Event& last = events_.back();
    last.synchronize();
    const double now_s = steady_seconds();
    for (size_t i = 0; i < seconds.size(); ++i) {
      seconds[i] = now_s - 1e-3 * events_[i].elapsedTime(last);  // milliseconds
    }
    return seconds;
  }

 private:
  c10::Device device_;
  std::vector<c10::Event> events_;
};

}  // namespace

std::unique_ptr<OpClock> device_clock(int cuda_device) {
  return cuda_device < 0 ? nullptr : std::make_unique<DeviceClock>(cuda_device);
}

}  // namespace distca
