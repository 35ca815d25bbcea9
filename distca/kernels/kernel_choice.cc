#include "distca/kernels/kernel_choice.h"

#include <fmt/format.h>

#include <algorithm>

#include "distca/base/env.h"
#include "distca/base/error.h"
#include "distca/kernels/cpu/attention.h"

namespace distca {
namespace {

bool ours_computes(const KernelRequest& request) {
  return request.cuda_device < 0 && kernels::cpu_supports(request.shape, request.type);
}

/// The heads for which `distca kernels build` compiles.
bool flash4_computes(const kernels::Shape& shape) {
  return shape.head_dim_qk == shape.head_dim_v &&
         (shape.head_dim_qk == 64 || shape.head_dim_qk == 128);
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
        "computes float32 and bfloat16 with head_dim up to 256 on a CPU, not {} with head_dim {} "
        "on {}: auto or aten would",
        long_name(request.type), std::max(request.shape.head_dim_qk, request.shape.head_dim_v),
        request.cuda_device < 0 ? "a CPU" : "CUDA");
  }
  if (request.choice == KernelChoice::kFa4 && request.cuda_device < 0)
    return "computes on CUDA, not on a CPU: auto or cpu would";
  if (request.choice == KernelChoice::kFa4 && request.type != ScalarType::kBFloat16) {
    return fmt::format("computes bfloat16, not {}: auto or aten would", long_name(request.type));
  }
  if (request.choice == KernelChoice::kFa4 && !flash4_computes(request.shape)) {
    return fmt::format(
        "computes heads of 64 or 128, of queries and values alike, not of {} and {}: auto or aten "
        "would",
        request.shape.head_dim_qk, request.shape.head_dim_v);
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

std::filesystem::path compiled_kernels_folder(int64_t head_dim, ScalarType type,
                                              int64_t heads_of_a_key_head) {
  const std::string name =
      fmt::format("fa4-sm_90-d{}-{}-g{}", head_dim, long_name(type), heads_of_a_key_head);
  if (const auto folder = env_string("DISTCA_KERNELS"))
    return std::filesystem::path(*folder) / name;
  const auto cache = env_string("XDG_CACHE_HOME");
  const std::filesystem::path home = env_string("HOME").value_or("/");
  return (cache ? std::filesystem::path(*cache) : home / ".cache") / "distca" / "kernels" / name;
}

}  // namespace distca
