#include "distca/train/bandwidth.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "distca/base/clock.h"
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

}  // namespace

int64_t measured_bytes_per_us(Communicator& comm) {
  const int size = comm.size();
  if (size == 1) return 0;
  const at::TensorOptions bytes =
      at::TensorOptions().device(aten_device(comm.cuda_device())).dtype(at::kByte);
  const int64_t sent = comm.cuda_device() < 0 ? kHostBytes : kDeviceBytes;
  const at::Tensor out = at::zeros({sent}, bytes), in = at::zeros({sent}, bytes);
  const Message send{(comm.rank() + 1) % size, kBandwidthTag,
                     reinterpret_cast<std::byte*>(out.data_ptr<uint8_t>()), sent};
  const Message receive{(comm.rank() + size - 1) % size, kBandwidthTag,
                        reinterpret_cast<std::byte*>(in.data_ptr<uint8_t>()), sent};
  int64_t best_ns = INT64_MAX;
  for (int round = 0; round < kRounds; ++round) {
    barrier(comm, kOperation);
    const Stopwatch watch;
    comm.exchange(std::span(&send, 1), std::span(&receive, 1), kOperation)->wait();
    if (in.is_cuda()) host_number(in[0]);  // waits for the device
    const int64_t mine_ns = std::llround(watch.seconds() * 1e9);
    best_ns = std::min(best_ns, std::ranges::max(all_gather(comm, mine_ns, kOperation)));
  }
  int64_t rate = sent * 1000 / std::max<int64_t>(1, best_ns);
  int64_t unit = 1;
  while (rate / unit >= 1000) unit *= 10;
  return std::max<int64_t>(1, (rate + unit / 2) / unit * unit);
}

}  // namespace distca
