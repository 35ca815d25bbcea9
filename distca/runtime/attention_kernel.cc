#include "distca/runtime/attention_kernel.h"

#include <fmt/format.h>

#include "distca/base/error.h"
#include "distca/comm/as_on_device.h"
#include "distca/kernels/cpu/attention.h"
#include "distca/kernels/reference/attention.h"
#include "distca/runtime/aten_attention.h"
#include "distca/runtime/cuda/cuda_attention.h"

namespace distca {

AttentionKernel::AttentionKernel(const KernelRequest& request) : request_(request) {
  const std::string fault = kernel_fault(request);
  DISTCA_CHECK(fault.empty(), "attention kernel {}", fault);
  request_.choice = chosen_kernel(request);
  if (request_.choice != KernelChoice::kCpu) return;
  isa_ = kernels::chosen_isa();
  pool_ = std::make_unique<kernels::ThreadPool>(request.threads);
}

std::string AttentionKernel::name() const {
  if (request_.choice == KernelChoice::kCpu) return fmt::format("cpu-{}", isa_name(isa_));
  if (request_.choice == KernelChoice::kReference) return "reference";
  return request_.cuda_device < 0 ? "aten-cpu" : "aten-cuda";
}

void AttentionKernel::prepare(Pass pass, const kernels::TaskList& list,
                              TaskLaunches* launches) const {
  const auto& [choice, shape, type, threads, cuda_device] = request_;
  if (choice == KernelChoice::kAten && as_on_device(cuda_device))
    cuda_prepare(shape, type, list, cuda_device, pass, launches);
}

int64_t AttentionKernel::forward(ScalarType o_type, const kernels::TaskList& list,
                                 TaskLaunches* launches) {
  const auto& [choice, shape, type, threads, cuda_device] = request_;
  if (choice == KernelChoice::kAten)
    return aten_forward(shape, type, list, cuda_device, o_type, launches);
  if (choice == KernelChoice::kCpu) {
    kernels::cpu_forward(shape, type, o_type, list, *pool_, isa_);
  } else {
    kernels::reference_forward(shape, type, o_type, list);
  }
  return 0;
}

int64_t AttentionKernel::backward(const kernels::TaskList& list, TaskLaunches* launches) {
  const auto& [choice, shape, type, threads, cuda_device] = request_;
  if (choice == KernelChoice::kAten) return aten_backward(shape, type, list, cuda_device, launches);
  if (choice == KernelChoice::kCpu) {
    kernels::cpu_backward(shape, type, list, *pool_, isa_);
  } else {
    kernels::reference_backward(shape, type, list);
  }
  return 0;
}

}  // namespace distca
