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
#include <string>
#include <string_view>
#include <vector>

#include "distca/base/scalar_type.h"
#include "distca/kernels/attention.h"

namespace distca {

enum class KernelChoice {
  kAuto,       // DistCA's kernel if it computes the type and head dims on this device, else ATen's
  kCpu,        // DistCA's own kernel
  kAten,       // ATen's
  kReference,  // computes in double, row by row, for tests
};

struct KernelName {
  std::string_view name;
  KernelChoice choice;
};
constexpr std::array<KernelName, 4> kKernelNames{{{"auto", KernelChoice::kAuto},
                                                  {"cpu", KernelChoice::kCpu},
                                                  {"aten", KernelChoice::kAten},
                                                  {"reference", KernelChoice::kReference}}};
/// The choice of that name. A name that is not in kKernelNames is a CHECK.
KernelChoice kernel_choice(std::string_view name);
std::string_view kernel_name(KernelChoice choice);
/// All names of kKernelNames.
std::vector<std::string> kernel_names();

/// The computation that is asked for, and its device.
struct KernelRequest {
  KernelChoice choice = KernelChoice::kAuto;
  kernels::Shape shape;
  ScalarType type = ScalarType::kFloat32;  // the type of Q, K and V
  int threads = 1;       // threads of DistCA's kernel; ATen has a setting of its own
  int cuda_device = -1;  // -1 is the CPU
};

/// One line that says why the choice cannot compute the request, and what would be right. It is
/// empty if the choice can.
std::string kernel_fault(const KernelRequest& request);
/// The kernel that computes a request without a fault: its choice, or what kAuto stands for.
KernelChoice chosen_kernel(const KernelRequest& request);

}  // namespace distca
