#pragma once
// The kernels that can compute core attention, and the choice of the one that computes a request:
// the names that a configuration gives, and what each of them cannot compute. It needs no PyTorch.
// AttentionKernel (attention_kernel.h) computes.
//
//   const KernelRequest request{.choice = kernel_choice("cpu"), .shape = shape};
//   if (const std::string fault = kernel_fault(request); !fault.empty()) ...
//
// Any thread may call the functions.

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "distca/base/scalar_type.h"
#include "distca/kernels/attention.h"

namespace distca {

enum class KernelChoice {
  kAuto,  // DistCA's kernel if it computes the type and head dims on this device, else ATen's,
          // and FlashAttention 4's for the launches for which it was measured to be faster
  kCpu,   // DistCA's own kernel
  kAten,  // ATen's
  kFa4,   // FlashAttention 4's, compiled for this kind of GPU (runtime/cuda/compiled_kernels.h)
  kReference,  // computes in double, row by row, for tests
};

struct KernelName {
  std::string_view name;
  KernelChoice choice;
};
constexpr std::array<KernelName, 5> kKernelNames{{{"auto", KernelChoice::kAuto},
                                                  {"cpu", KernelChoice::kCpu},
                                                  {"aten", KernelChoice::kAten},
                                                  {"fa4", KernelChoice::kFa4},
                                                  {"reference", KernelChoice::kReference}}};
/// The choice of that name. A name that is not in kKernelNames is a CHECK.
KernelChoice kernel_choice(std::string_view name);
std::string_view kernel_name(KernelChoice choice);
/// All names of kKernelNames.
std::vector<std::string> kernel_names();

/// The kernels that were measured to be fastest on a CUDA device, kAten or kFa4, by the length
/// class of a launch (varlen_launches.h), the last for all longer ones too. Empty if nothing was
/// measured.
struct MeasuredKernels {
  std::vector<KernelChoice> forward, backward;
  bool operator==(const MeasuredKernels&) const = default;
};

/// The computation that is asked for, and its device.
struct KernelRequest {
  KernelChoice choice = KernelChoice::kAuto;
  kernels::Shape shape;
  ScalarType type = ScalarType::kFloat32;  // the type of Q, K and V
  int threads = 1;                // threads of DistCA's kernel; ATen has a setting of its own
  int cuda_device = -1;           // -1 is the CPU
  MeasuredKernels measured = {};  // for kAuto
};

/// One line that says why the choice cannot compute the request, and what would be right. It is
/// empty if the choice can.
std::string kernel_fault(const KernelRequest& request);
/// The kernel that computes a request without a fault: its choice, or what kAuto stands for.
KernelChoice chosen_kernel(const KernelRequest& request);

/// Where FlashAttention 4's kernels for heads of this size are, so many of them for each key head:
/// the folder that `distca kernels build` makes by default, as fa4-sm_90-d128-bfloat16-g4, in
/// $DISTCA_KERNELS or, if that is not set, in the user's cache (~/.cache/distca/kernels).
std::filesystem::path compiled_kernels_folder(int64_t head_dim, ScalarType type,
                                              int64_t heads_of_a_key_head);

}  // namespace distca
