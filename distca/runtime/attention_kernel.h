#pragma once
// An AttentionKernel computes the tasks of core attention on one rank. It is the only place that
// chooses between DistCA's own kernel (kernels/cpu), ATen's and the reference, and it owns the
// threads of DistCA's kernel.
//
// Threads. Each rank has one kernel and uses it from one thread. While DistCA's kernel runs, ATen
// computes nothing on this rank.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "distca/kernels/attention.h"
#include "distca/kernels/cpu/isa.h"
#include "distca/kernels/cpu/thread_pool.h"

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

/// What is to be computed, and where.
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

class AttentionKernel {
 public:
  /// A request with a fault is a CHECK. Throws Error(kUsage) if DISTCA_KERNEL_ISA names an
  /// instruction set that this machine lacks or that does not exist (chosen_isa).
  explicit AttentionKernel(const KernelRequest& request);

  const kernels::Shape& shape() const { return request_.shape; }
  ScalarType type() const { return request_.type; }
  /// -1 is the CPU.
  int cuda_device() const { return request_.cuda_device; }
  /// The name of what computes: "cpu-avx512", "aten-cpu", "aten-cuda" or "reference".
  std::string name() const;

  /// Computes O and LSE. `o_type` is the type of O: that of the inputs or, for partial results,
  /// their accumulator_type. Returns the bytes that were copied to and from an operator of ATen's,
  /// which is 0 on a CPU.
  int64_t forward(ScalarType o_type, const kernels::TaskList& list);
  /// Adds the gradients to dq, dk and dv. Returns the bytes that were copied, as forward does.
  int64_t backward(const kernels::TaskList& list);

 private:
  KernelRequest request_;  // `choice` is what was chosen, not kAuto
  kernels::Isa isa_ = kernels::Isa::kPortable;
  std::unique_ptr<kernels::ThreadPool> pool_;  // of kCpu
};

}  // namespace distca
