#include "distca/runtime/attention_kernel.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "distca/base/error.h"
#include "distca/base/json.h"
#include "distca/comm/as_on_device.h"
#include "distca/comm/collectives.h"
#include "distca/kernels/cpu/attention.h"
#include "distca/kernels/reference/attention.h"
#include "distca/runtime/aten_attention.h"
#include "distca/runtime/cuda/compiled_kernels.h"
#include "distca/runtime/cuda/cuda_attention.h"

namespace distca {

AttentionKernel::AttentionKernel(const KernelRequest& request) : request_(request) {
  const std::string fault = kernel_fault(request);
  // Tests treat a CPU as a device, with stand-ins of a device's kernels.
  const bool has_stand_ins =
      request.choice == KernelChoice::kFa4 && as_on_device(request.cuda_device);
  DISTCA_CHECK(fault.empty() || has_stand_ins, "attention kernel {}", fault);
  request_.choice = chosen_kernel(request);
  if (request_.choice == KernelChoice::kFa4) find_flash4();
  if (request.choice == KernelChoice::kAuto && as_on_device(request.cuda_device))
    choose_by_profile();
  if (request_.choice != KernelChoice::kCpu) return;
  isa_ = kernels::chosen_isa();
  pool_ = std::make_unique<kernels::ThreadPool>(request.threads);
}
AttentionKernel::~AttentionKernel() = default;

void AttentionKernel::find_flash4() {
  auto [kernels, reason] =
      find_compiled_kernels(request_.shape, request_.type, request_.cuda_device);
  DISTCA_THROW_IF(!kernels, ErrorKind::kConfig, "kernel fa4: {}", reason);
  compiled_ = std::move(kernels);
}

void AttentionKernel::choose_by_profile() {
  if (request_.type != ScalarType::kBFloat16) return;
  const auto has_flash4 = [](const std::vector<KernelChoice>& by_class) {
    return std::ranges::find(by_class, KernelChoice::kFa4) != by_class.end();
  };
  const auto& [forward, backward] = request_.measured;
  auto [kernels, reason] =
      find_compiled_kernels(request_.shape, request_.type, request_.cuda_device);
  if (reason.empty() && forward.empty()) {
    reason =
        "plan.profile names no profile that compares it with ATen's kernel for such heads (distca "
        "profile --attention --device cuda)";
  } else if (reason.empty() && !has_flash4(forward) && !has_flash4(backward)) {
    reason = "ATen's kernel is faster in the profile that plan.profile names";
  }
  if (!reason.empty()) {
    passed_over_ = reason;
    return;
  }
  request_.choice = KernelChoice::kFa4;
  is_measured_ = true;
  compiled_ = std::move(kernels);
}

void AttentionKernel::pass_over_flash4(std::string reason) {
  passed_over_ = std::move(reason);
  if (!compiled_) return;
  compiled_.reset();
  is_measured_ = false;
  request_.choice = KernelChoice::kAten;
}

std::string AttentionKernel::passed_over() const {
  return passed_over_.empty() ? "" : "FlashAttention 4 is passed over: " + passed_over_;
}

Flash4 AttentionKernel::flash4() const {
  return {.kernels = compiled_.get(), .measured = is_measured_ ? &request_.measured : nullptr};
}

std::string AttentionKernel::name() const {
  if (request_.choice == KernelChoice::kCpu) return fmt::format("cpu-{}", isa_name(isa_));
  if (request_.choice == KernelChoice::kReference) return "reference";
  if (is_measured_) return fmt::format("{} and aten-cuda by length", compiled_->name());
  if (compiled_) return compiled_->name();
  return request_.cuda_device < 0 ? "aten-cpu" : "aten-cuda";
}

void AttentionKernel::prepare(Pass pass, const kernels::TaskList& list,
                              TaskLaunches* launches) const {
  const KernelRequest& r = request_;
  const bool is_fused = r.choice == KernelChoice::kAten || r.choice == KernelChoice::kFa4;
  if (is_fused && as_on_device(r.cuda_device))
    cuda_prepare(r.shape, r.type, list, r.cuda_device, pass, launches, flash4());
}

int64_t AttentionKernel::forward(ScalarType o_type, const kernels::TaskList& list,
                                 TaskLaunches* launches) {
  const KernelRequest& r = request_;
  switch (r.choice) {
    case KernelChoice::kCpu:
      kernels::cpu_forward(r.shape, r.type, o_type, list, *pool_, isa_);
      return 0;
    case KernelChoice::kReference:
      kernels::reference_forward(r.shape, r.type, o_type, list);
      return 0;
    default:
      if (as_on_device(r.cuda_device))
        return cuda_forward(r.shape, r.type, o_type, list, r.cuda_device, launches, flash4());
      aten_forward(r.shape, r.type, list, o_type);
      return 0;
  }
}

int64_t AttentionKernel::backward(const kernels::TaskList& list, TaskLaunches* launches) {
  const KernelRequest& r = request_;
  switch (r.choice) {
    case KernelChoice::kCpu:
      kernels::cpu_backward(r.shape, r.type, list, *pool_, isa_);
      return 0;
    case KernelChoice::kReference:
      kernels::reference_backward(r.shape, r.type, list);
      return 0;
    default:
      if (as_on_device(r.cuda_device))
        return cuda_backward(r.shape, r.type, list, r.cuda_device, launches, flash4());
      aten_backward(r.shape, r.type, list);
      return 0;
  }
}

void agree_on_kernel(Communicator& comm, bool is_free, AttentionKernel& kernel) {
  const Json mine = {{"free", is_free},
                     {"flash4", kernel.has_flash4()},
                     {"name", kernel.name()},
                     {"reason", kernel.reason()}};
  std::vector<Json> all;
  for (const std::string& text : all_gather_texts(comm, mine.dump(), "comparing kernels"))
    all.push_back(parse_json(text, "another rank's kernel", ErrorKind::kComm));
  const auto is_bound = [](const Json& one) { return one["free"] == false; };
  const auto has_flash4 = [](const Json& one) { return one["flash4"] == true; };
  if (std::ranges::any_of(all, is_bound) || std::ranges::none_of(all, has_flash4)) return;
  const auto without = std::ranges::find_if_not(all, has_flash4);
  if (without != all.end()) {
    return kernel.pass_over_flash4(
        fmt::format("rank {}: {}", without - all.begin(), (*without)["reason"].get<std::string>()));
  }
  const auto other =
      std::ranges::find_if(all, [&](const Json& one) { return one["name"] != all[0]["name"]; });
  if (other == all.end()) return;
  kernel.pass_over_flash4(fmt::format("rank {} has {}, rank 0 has {}", other - all.begin(),
                                      (*other)["name"].get<std::string>(),
                                      all[0]["name"].get<std::string>()));
}

}  // namespace distca
