#include "distca/train/peak.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "distca/base/clock.h"
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

}  // namespace

ComputePeak measure_peak(const Config& config, Communicator& comm) {
  constexpr double kSeconds = 0.1;
  constexpr const char* kOperation = "peak measurement";
  const bool own_kernel = chosen_kernel(kernel_request(config)) == KernelChoice::kCpu;
  barrier(comm, kOperation);
  double rate[1] = {own_kernel ? 1e9 * kernels::measured_peak_gflops(
                                           kernels::chosen_isa(), config.model.dtype, kSeconds,
                                           static_cast<int>(config.train.threads_per_rank))
                               : matrix_product_rate(config.model.dtype, comm.cuda_device())};
  ordered_sum(comm, rate, kOperation);
  return {.flops_per_s = rate[0],
          .of = config.model_dtype + (own_kernel ? " multiply-adds" : " matrix products")};
}

}  // namespace distca
