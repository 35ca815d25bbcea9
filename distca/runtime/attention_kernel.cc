#include "distca/runtime/attention_kernel.h"

#include <fmt/format.h>

#include <algorithm>

#include "distca/base/error.h"
#include "distca/kernels/cpu/attention.h"
#include "distca/kernels/reference/attention.h"
#include "distca/runtime/aten_attention.h"

namespace distca {
namespace {

bool ours_computes(const KernelRequest& request) {
  return request.cuda_device < 0 && kernels::cpu_supports(request.shape, request.type);
}

}  // namespace

KernelChoice kernel_choice(std::string_view name) {
  const auto found = std::ranges::find(kKernelNames, name, &KernelName::name);
  DISTCA_CHECK(found != kKernelNames.end(), "no attention kernel {}", name);
  return found->choice;
}

std::string_view kernel_name(KernelChoice choice) {
  return std::ranges::find(kKernelNames, choice, &KernelName::choice)->name;
}

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for (const KernelName& kernel : kKernelNames) names.emplace_back(kernel.name);
  return names;
}

std::string kernel_fault(const KernelRequest& request) {
  if (request.choice == KernelChoice::kCpu && !ours_computes(request)) {
    return fmt::format(
        "computes fp32 and bf16 with head_dim up to 256 on a CPU, not {} with head_dim {} on {}: "
        "auto or aten would",
        short_name(request.type), std::max(request.shape.head_dim_qk, request.shape.head_dim_v),
        request.cuda_device < 0 ? "a CPU" : "CUDA");
  }
  if (request.choice == KernelChoice::kReference && request.cuda_device >= 0) {
    return "computes on a CPU, not on CUDA: auto or aten would";
  }
  return {};
}

KernelChoice chosen_kernel(const KernelRequest& request) {
  if (request.choice != KernelChoice::kAuto) return request.choice;
  return ours_computes(request) ? KernelChoice::kCpu : KernelChoice::kAten;
}

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

int64_t AttentionKernel::forward(ScalarType o_type, const kernels::TaskList& list) {
  const auto& [choice, shape, type, threads, cuda_device] = request_;
  if (choice == KernelChoice::kAten) return aten_forward(shape, type, list, cuda_device, o_type);
  if (choice == KernelChoice::kCpu) {
    kernels::cpu_forward(shape, type, o_type, list, *pool_, isa_);
  } else {
    kernels::reference_forward(shape, type, o_type, list);
  }
  return 0;
}

int64_t AttentionKernel::backward(const kernels::TaskList& list) {
  const auto& [choice, shape, type, threads, cuda_device] = request_;
  if (choice == KernelChoice::kAten) return aten_backward(shape, type, list, cuda_device);
  if (choice == KernelChoice::kCpu) {
    kernels::cpu_backward(shape, type, list, *pool_, isa_);
  } else {
    kernels::reference_backward(shape, type, list);
  }
  return 0;
}

}  // namespace distca
