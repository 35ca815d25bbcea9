#include "distca/train/compute_peak.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <string_view>
#include <thread>

#include "distca/base/clock.h"
#include "distca/comm/aten_types.h"
#include "distca/comm/collectives.h"
#include "distca/comm/ordered_sum.h"
#include "distca/kernels/cpu/peak.h"
#include "distca/kernels/varlen_launches.h"
#include "distca/runtime/cuda/deterministic_price.h"
#include "distca/runtime/task_lists.h"

namespace distca {
namespace {

void wait_for(const at::Device& device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeStream(guard.getStream(device));
}

/// Returns the share of a core that each thread of this machine's ranks has, at most 1. Measured
/// rates are multiplied by it, because a measurement is so short that it may find a whole core free
/// where ranks take turns.
double share_of_a_core(Communicator& comm, int64_t threads_per_rank, const char* operation) {
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  const int64_t ranks_here =
      std::ranges::count(all_gather_texts(comm, host, operation), std::string_view(host));
  const double cores = std::max(1u, std::thread::hardware_concurrency());
  return std::min(1.0, cores / static_cast<double>(ranks_here * threads_per_rank));
}

}  // namespace

int64_t deterministic_probe_tokens(const Config& config) {
  constexpr int64_t kMostTokens = 8192;
  if (!config.on_cuda() || !config.train.deterministic || config.train.steps == 0) return 0;
  // ATen's kernel is measured, and FlashAttention 4 may compute in its place.
  const KernelRequest request = kernel_request(config);
  const bool may_be_flash4 =
      request.choice == KernelChoice::kFa4 ||
      (request.choice == KernelChoice::kAuto &&
       std::ranges::count(request.measured.backward, KernelChoice::kFa4) > 0);
  if (may_be_flash4) return 0;
  // The fused operators choose by it how they sum; matrix products, which compute the rest, do not.
  // Windows are left out of what is measured, so a layer has to see all keys where they decide.
  const kernels::Task task{.q_tokens = 1,
                           .keys = {{.tokens = 1}},
                           .mask = kernel_mask(config.model.shape(0).attention.mask)};
  if (!kernels::is_fused(request.shape, config.model.dtype, task)) return 0;
  return std::min({kMostTokens, config.batch.max_document_tokens, config.batch.nano_batch_tokens});
}

int64_t peak_product_size(int cuda_device) { return cuda_device < 0 ? 512 : 8192; }

double matrix_product_rate(ScalarType type, int cuda_device, int64_t size, double seconds) {
  const c10::AutoGradMode no_grad(false);
  constexpr int kWarmUp = 3;  // chooses the kernel, loads it, wakes the clock
  constexpr int kLeastRounds = 3;
  constexpr int kProductsAtOnce = 4;  // given to a device before it is waited for
  const at::Device device = aten_device(cuda_device);
  // Random: a device that computes on equal bits draws less power and may run faster than it can.
  const auto options = at::TensorOptions().device(device).dtype(aten_type(type));
  const at::Tensor a = at::randn({size, size}, options), b = at::randn({size, size}, options);
  at::Tensor product = at::empty({size, size}, options);
  for (int i = 0; i < kWarmUp; ++i) at::mm_out(product, a, b);
  wait_for(device);
  const int at_once = cuda_device < 0 ? 1 : kProductsAtOnce;
  const Stopwatch all;
  double best_s = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kLeastRounds || all.seconds() < seconds; ++round) {
    const Stopwatch watch;
    for (int i = 0; i < at_once; ++i) at::mm_out(product, a, b);
    wait_for(device);
    best_s = std::min(best_s, watch.seconds() / at_once);
  }
  const auto n = static_cast<double>(size);
  return 2.0 * n * n * n / best_s;
}

ComputePeak measure_peak(const Config& config, Communicator& comm) {
  constexpr double kSeconds = 0.1;
  constexpr const char* kOperation = "peak measurement";
  const bool own_kernel = chosen_kernel(kernel_request(config)) == KernelChoice::kCpu;
  const double share =
      comm.cuda_device() < 0 ? share_of_a_core(comm, config.train.threads_per_rank, kOperation) : 1;
  barrier(comm, kOperation);
  // One rank measures the device that all threads share.
  const bool counts = comm.cuda_device() < 0 || comm.rank() == 0 || !config.ranks_are_threads();
  double rate[1] = {0};
  if (own_kernel) {
    rate[0] =
        1e9 * kernels::measured_peak_gflops(kernels::chosen_isa(), config.model.dtype, kSeconds,
                                            static_cast<int>(config.train.threads_per_rank));
  } else if (counts) {
    rate[0] = matrix_product_rate(config.model.dtype, comm.cuda_device(),
                                  peak_product_size(comm.cuda_device()), kSeconds);
  }
  const int64_t tokens = comm.rank() == 0 ? deterministic_probe_tokens(config) : 0;
  double deterministic_times = 0;
  if (tokens > 0) {
    const KernelRequest request = kernel_request(config);
    deterministic_times = deterministic_price({.shape = request.shape,
                                               .type = request.type,
                                               .tokens = tokens,
                                               .cuda_device = comm.cuda_device()},
                                              [&] {
                                                wait_for(aten_device(comm.cuda_device()));
                                                return steady_seconds();
                                              });
  }
  rate[0] *= share;
  ordered_sum(comm, rate, kOperation);
  return {.flops_per_s = rate[0],
          .of = std::string(long_name(config.model.dtype)) +
                (own_kernel ? " multiply-adds" : " matrix products"),
          .deterministic_times = deterministic_times};
}

}  // namespace distca
