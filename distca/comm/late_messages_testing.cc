#include <ATen/ATen.h>

#include "distca/comm/late_messages_testing.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "distca/base/error.h"
#include "distca/base/random.h"

// PyTorch's kernel that spins, declared as ATen/cuda/Sleep.h does. A build without CUDA has none.
namespace at::cuda {
__attribute__((weak)) void sleep(int64_t cycles);
}

namespace distca::testing {
namespace {

/// Numbers from one seed for many threads, in the order in which they ask.
class Chance {
 public:
  explicit Chance(uint64_t seed) : seed_(seed) {}
  uint64_t below(uint64_t count) { return Random(seed_, next_++).below(count); }
  bool of(double share) { return Random(seed_, next_++).uniform() < share; }

 private:
  const uint64_t seed_;
  std::atomic<uint64_t> next_ = 0;
};

/// A message whose bytes are taken when one of its sides waits, and arrive when the receiver does.
class LateCopy {
 public:
  LateCopy(std::byte* to, const std::byte* from, int64_t bytes, std::thread::id receiver)
      : to_(to), from_(from), bytes_(bytes), receiver_(receiver) {
    std::fill(to, to + bytes, std::byte{0xFF});  // NaN in every format
  }
  void follow() {
    const std::lock_guard lock(mutex_);
    if (!taken_) on_the_way_.assign(from_, from_ + bytes_);
    taken_ = true;
    if (arrived_ || std::this_thread::get_id() != receiver_) return;
    std::ranges::copy(on_the_way_, to_);
    arrived_ = true;
  }

 private:
  std::byte* const to_;
  const std::byte* const from_;
  const int64_t bytes_;
  const std::thread::id receiver_;
  std::mutex mutex_;
  std::vector<std::byte> on_the_way_;
  bool taken_ = false, arrived_ = false;
};

}  // namespace

ThreadDevice late_messages(uint64_t seed, double late_share) {
  auto chance = std::make_shared<Chance>(seed);
  constexpr uint64_t kMostPauseUs = 100;
  ThreadDevice device;
  device.mark = [] { return std::make_shared<std::thread::id>(std::this_thread::get_id()); };
  device.copy = [chance, late_share](std::byte* to, const std::byte* from, int64_t bytes,
                                     const DeviceMark&, const DeviceMark& receiver) -> DeviceMark {
    if (chance->of(1.0 / 8))  // ranks overtake each other
      std::this_thread::sleep_for(std::chrono::microseconds(chance->below(kMostPauseUs)));
    if (!chance->of(late_share)) {
      std::copy(from, from + bytes, to);
      return nullptr;
    }
    return std::make_shared<LateCopy>(to, from, bytes,
                                      *static_cast<const std::thread::id*>(receiver.get()));
  };
  device.follow = [](const DeviceMark& mark) {
    if (mark) static_cast<LateCopy*>(mark.get())->follow();
  };
  return device;
}

ThreadDevice with_random_delays(const ThreadDevice& device, const Streams& streams, uint64_t seed,
                                int64_t most_us) {
  auto chance = std::make_shared<Chance>(seed);
  const auto spin = [chance, streams, most_us] {
    if (chance->of(1.0 / 2))
      streams.spin(static_cast<int64_t>(chance->below(static_cast<uint64_t>(most_us))) + 1);
  };
  ThreadDevice late = device;
  late.mark = [=] {
    spin();
    return device.mark();
  };
  late.copy = [=](std::byte* to, const std::byte* from, int64_t bytes, const DeviceMark& sender,
                  const DeviceMark& receiver) {
    DeviceMark sent, free;
    streams.aside([&] {
      device.follow(sender);
      spin();
      sent = device.mark();
    });
    streams.aside([&] {
      device.follow(receiver);
      streams.fill(to, bytes);
      spin();
      free = device.mark();
    });
    return device.copy(to, from, bytes, sent, free);
  };
  late.follow = [=](const DeviceMark& mark) {
    spin();
    device.follow(mark);
  };
  return late;
}

Streams cuda_streams(int cuda_device) {
  DISTCA_CHECK(&at::cuda::sleep != nullptr, "this PyTorch has no CUDA");
  const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(cuda_device));
  constexpr int64_t kCyclesPerUs = 1500;  // about, of a data centre's GPU
  constexpr size_t kAside = 8;            // streams, of the 32 that the pool gives in turn
  std::vector<c10::Stream> streams;
  while (streams.size() < kAside) {
    streams.push_back(c10::impl::VirtualGuardImpl(c10::kCUDA)
                          .getStreamFromGlobalPool(device, /*isHighPriority=*/false));
  }
  return {.spin = [](int64_t microseconds) { at::cuda::sleep(microseconds * kCyclesPerUs); },
          .fill =
              [device](std::byte* to, int64_t bytes) {
                at::from_blob(to, {bytes}, at::TensorOptions(at::kByte).device(device)).fill_(0xff);
              },
          .aside =
              [streams,
               next = std::make_shared<std::atomic<size_t>>(0)](const std::function<void()>& body) {
                const c10::StreamGuard guard(streams[(*next)++ % streams.size()]);
                body();
              }};
}

}  // namespace distca::testing
