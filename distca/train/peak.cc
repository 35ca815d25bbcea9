#include "distca/train/peak.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <thread>
#include <vector>

#include "distca/base/clock.h"
#include "distca/base/hash.h"
#include "distca/comm/aten_types.h"
#include "distca/comm/collectives.h"
#include "distca/comm/ordered_sum.h"
#include "distca/kernels/cpu/peak.h"

namespace distca {
namespace {

double matrix_product_rate(ScalarType type, int cuda_device) {
  const c10::AutoGradMode no_grad(false);
  constexpr int64_t kSize = 512;
  constexpr int kRounds = 12;
  const auto device = cuda_device < 0
                          ? at::Device(at::kCPU)
                          : at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(cuda_device));
  const at::Tensor a =
      at::ones({kSize, kSize}, at::TensorOptions().device(device).dtype(aten_type(type)));
  double best_s = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    const Stopwatch watch;
    const at::Tensor product = at::mm(a, a);
    if (product.is_cuda()) product[0][0].item();  // waits for the device
    best_s = std::min(best_s, watch.seconds());
  }
  return 2.0 * kSize * kSize * kSize / best_s;
}

/// What of a core each thread of this machine's ranks has: bursts are short enough to find one free
/// where ranks take turns.
double share_of_a_core(Communicator& comm, int64_t threads_per_rank, const char* operation) {
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  Fnv1a64 hash;
  hash.add(host);
  const uint64_t mine = hash.value();
  const std::vector<std::byte> all =
      all_gather_bytes(comm, std::as_bytes(std::span(&mine, 1)), operation);
  int64_t threads = 0;
  for (int rank = 0; rank < comm.size(); ++rank) {
    if (std::memcmp(all.data() + rank * sizeof(mine), &mine, sizeof(mine)) == 0)
      threads += threads_per_rank;
  }
  const double cores = std::max(1u, std::thread::hardware_concurrency());
  return std::min(1.0, cores / static_cast<double>(threads));
}

}  // namespace

ComputePeak measure_peak(const Config& config, Communicator& comm) {
  constexpr double kSeconds = 0.1;
  constexpr const char* kOperation = "peak measurement";
  const bool own_kernel = chosen_kernel(kernel_request(config)) == KernelChoice::kCpu;
  const double share =
      comm.cuda_device() < 0 ? share_of_a_core(comm, config.train.threads_per_rank, kOperation) : 1;
  barrier(comm, kOperation);
  double rate[1] = {own_kernel ? 1e9 * kernels::measured_peak_gflops(
                                           kernels::chosen_isa(), config.model.dtype, kSeconds,
                                           static_cast<int>(config.train.threads_per_rank))
                               : matrix_product_rate(config.model.dtype, comm.cuda_device())};
  rate[0] *= share;
  ordered_sum(comm, rate, kOperation);
  return {.flops_per_s = rate[0],
          .of = config.model_dtype + (own_kernel ? " multiply-adds" : " matrix products")};
}

}  // namespace distca
