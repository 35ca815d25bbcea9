#include "distca/runtime/memory_meter.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/CPUAllocator.h>
#include <sys/resource.h>

#include <atomic>
#include <mutex>
#include <new>

namespace distca {

struct MemoryCounter {
  std::atomic<int64_t> now = 0, peak = 0;

  void add(int64_t bytes) {
    const int64_t sum = now += bytes;
    int64_t most = peak;
    while (sum > most && !peak.compare_exchange_weak(most, sum)) {
    }
  }
};

namespace {

/// Allocates as the allocator that was there before, with a few bytes more, which say who counts.
class CountingAllocator final : public at::Allocator {
 public:
  explicit CountingAllocator(at::Allocator* inner) { inner_ = inner; }

  at::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, at::Device(at::kCPU)};
    void* const begin = inner_->raw_allocate(bytes + kHeader);
    const auto* header = new (begin) Header{counter_, static_cast<int64_t>(bytes)};
    if (header->counter) header->counter->add(header->bytes);
    void* const data = static_cast<std::byte*>(begin) + kHeader;
    return {data, data, &release, at::Device(at::kCPU)};
  }
  at::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }

  // The counter of the thread's meter.
  static inline thread_local std::shared_ptr<MemoryCounter> counter_;

 private:
  struct Header {
    std::shared_ptr<MemoryCounter> counter;
    int64_t bytes;
  };
  static constexpr size_t kHeader = 64;  // ATen's alignment
  static_assert(sizeof(Header) <= kHeader);

  static void release(void* data) {
    if (data == nullptr) return;
    void* const begin = static_cast<std::byte*>(data) - kHeader;
    auto* const header = static_cast<Header*>(begin);
    if (header->counter) header->counter->add(-header->bytes);
    header->~Header();
    inner_->raw_deallocate(begin);
  }

  static inline at::Allocator* inner_ = nullptr;
};

}  // namespace

MemoryMeter::MemoryMeter(int cuda_device)
    : counter_(std::make_shared<MemoryCounter>()), cuda_device_(cuda_device) {
  if (cuda_device_ >= 0) {
    at::globalContext().lazyInitDevice(at::kCUDA);  // its allocator counts from then on
    at::accelerator::resetPeakStats(static_cast<int8_t>(cuda_device_));
    return;
  }
  static std::once_flag once;
  std::call_once(once, [] {
    // PyTorch keeps it for as long as the process lives.
    c10::SetCPUAllocator(new CountingAllocator(c10::GetCPUAllocator()));
  });
  CountingAllocator::counter_ = counter_;
}

MemoryMeter::~MemoryMeter() {
  auto& counter = CountingAllocator::counter_;
  if (counter == counter_) counter.reset();
}

int64_t MemoryMeter::bytes() const {
  if (cuda_device_ < 0) return counter_->now;
  return at::accelerator::getDeviceStats(static_cast<int8_t>(cuda_device_))
      .allocated_bytes[0]
      .current;
}

int64_t MemoryMeter::peak_bytes() const {
  if (cuda_device_ < 0) return counter_->peak;
  return at::accelerator::getDeviceStats(static_cast<int8_t>(cuda_device_)).allocated_bytes[0].peak;
}

int64_t resident_peak_bytes() {
  rusage used{};
  return getrusage(RUSAGE_SELF, &used) == 0 ? int64_t{1024} * used.ru_maxrss : 0;
}

}  // namespace distca
