#include "distca/train/bandwidth.h"

#include <ATen/ATen.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <thread>
#include <vector>

#include "distca/base/clock.h"
#include "distca/base/statistics.h"
#include "distca/comm/aten_types.h"
#include "distca/comm/collectives.h"
#include "distca/comm/host_read.h"
#include "distca/comm/tags.h"

namespace distca {
namespace {

// The host takes some 0.1 ms to start a device's messages and to notice that they have arrived.
// The messages are so large that this is little compared with their transfer.
constexpr int64_t kHostBytes = 4 << 20, kDeviceBytes = 256 << 20;
constexpr int kRounds = 4;
constexpr const char* kOperation = "bandwidth measurement";

/// A ring of messages, each to the neighbour.
class Ring {
 public:
  Ring(Communicator& comm, int64_t bytes) : comm_(comm) {
    const int size = comm.size();
    const at::TensorOptions of_bytes =
        at::TensorOptions().device(aten_device(comm.cuda_device())).dtype(at::kByte);
    out_ = at::zeros({bytes}, of_bytes);
    in_ = at::zeros({bytes}, of_bytes);
    const auto message = [&](int peer, const at::Tensor& memory) {
      return Message{peer % size, kBandwidthTag,
                     reinterpret_cast<std::byte*>(memory.data_ptr<uint8_t>()), bytes};
    };
    send_ = message(comm.rank() + 1, out_);
    receive_ = message(comm.rank() + size - 1, in_);
  }

  /// Seconds from where all ranks are at it to where all messages of this rank have arrived.
  double seconds() {
    barrier(comm_, kOperation);
    const Stopwatch watch;
    comm_.exchange(std::span(&send_, 1), std::span(&receive_, 1), kOperation)->wait();
    if (in_.is_cuda()) host_number(in_[0]);  // waits for the device
    return watch.seconds();
  }

 private:
  Communicator& comm_;
  at::Tensor out_, in_;
  Message send_, receive_;
};

double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

int64_t measured_bytes_per_us(Communicator& comm) {
  if (comm.size() == 1) return 0;
  const int64_t sent = comm.cuda_device() < 0 ? kHostBytes : kDeviceBytes;
  Ring ring(comm, sent);
  int64_t best_ns = INT64_MAX;
  for (int round = 0; round < kRounds; ++round) {
    const int64_t mine_ns = std::llround(ring.seconds() * 1e9);
    best_ns = std::min(best_ns, std::ranges::max(all_gather(comm, mine_ns, kOperation)));
  }
  int64_t rate = sent * 1000 / std::max<int64_t>(1, best_ns);
  int64_t unit = 1;
  while (rate / unit >= 1000) unit *= 10;
  return std::max<int64_t>(1, (rate + unit / 2) / unit * unit);
}

MeasuredWire measured_wire(Communicator& comm, bool shares_process) {
  if (comm.size() == 1) return {};
  const int64_t large = comm.cuda_device() < 0 ? kHostBytes : kDeviceBytes, small = large / 4;
  // The slowest rank's, of which the median counts.
  const auto seconds_of = [&](Ring& ring, int rounds) {
    std::vector<double> seconds;
    for (int round = 0; round < rounds; ++round) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      seconds.push_back(std::ranges::max(all_gather(comm, ring.seconds(), kOperation)));
    }
    return median(seconds);
  };
  MeasuredWire wire;
  Ring of_byte(comm, 1), of_small(comm, small), of_large(comm, large);
  wire.latency_s = seconds_of(of_byte, 20);
  const double small_s = seconds_of(of_small, 8);
  const double before_s = processor_seconds(), own_before_s = thread_processor_seconds();
  const double large_s = seconds_of(of_large, 8);
  const double process_s = (processor_seconds() - before_s) / (shares_process ? comm.size() : 1);
  const double core_s = process_s - (thread_processor_seconds() - own_before_s);
  if (comm.cuda_device() < 0 && core_s > 0)
    wire.core_bytes_per_s = 2. * 8 * static_cast<double>(large) / core_s;
  const auto large_bytes = static_cast<double>(large), small_bytes = static_cast<double>(small);
  wire.bytes_per_s =
      large_s > small_s ? (large_bytes - small_bytes) / (large_s - small_s) : large_bytes / large_s;
  wire.burst_bytes =
      std::clamp(small_bytes - (small_s - wire.latency_s) * wire.bytes_per_s, 0., small_bytes);
  return wire;
}

}  // namespace distca
