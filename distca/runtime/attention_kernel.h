#pragma once
// The kernel that computes a rank's tasks of core attention: the one place that chooses between
// our own (kernels/cpu), ATen's and the reference, and the owner of our own one's threads.
//
// Thread rule: one thread; a kernel a rank. While our own runs, ATen computes nothing on this rank.

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
  kAuto,       // our own where it computes the type and head dims on this device, else ATen's
  kCpu,        // our own
  kAten,       // ATen's
  kReference,  // in double, row by row: for tests
};

struct KernelName {
  std::string_view name;
  KernelChoice choice;
};
constexpr std::array<KernelName, 4> kKernelNames{{{"auto", KernelChoice::kAuto},
                                                  {"cpu", KernelChoice::kCpu},
                                                  {"aten", KernelChoice::kAten},
                                                  {"reference", KernelChoice::kReference}}};
/// A name of kKernelNames; anything else is a CHECK.
KernelChoice kernel_choice(std::string_view name);
std::string_view kernel_name(KernelChoice choice);
/// The names of kKernelNames.
std::vector<std::string> kernel_names();

/// What is to be computed, where.
struct KernelRequest {
  KernelChoice choice = KernelChoice::kAuto;
  kernels::Shape shape;
  ScalarType type = ScalarType::kFloat32;  // of Q, K, V
  int threads = 1;                         // of our own kernel; ATen's are a setting of its own
  int cuda_device = -1;                    // -1: CPU
};

/// Why the choice cannot compute this and what would be right, in one line; empty if it can.
std::string kernel_fault(const KernelRequest& request);
/// What computes a request without a fault: its choice, for kAuto the one that is taken.
KernelChoice chosen_kernel(const KernelRequest& request);

class AttentionKernel {
 public:
  /// A request with a fault is a CHECK. Throws Error(kUsage) for an instruction set that this
  /// machine lacks (chosen_isa).
  explicit AttentionKernel(const KernelRequest& request);

  const kernels::Shape& shape() const { return request_.shape; }
  ScalarType type() const { return request_.type; }
  /// -1: CPU.
  int cuda_device() const { return request_.cuda_device; }
  /// What computes: "cpu-avx512", "aten-cpu", "aten-cuda", "reference".
  std::string name() const;

  /// `o_type`: of O, the type of the inputs or, for partial results, its accumulator_type. Returns
  /// the bytes copied to and from an operator of ATen's: 0 on CPU.
  int64_t forward(ScalarType o_type, const kernels::TaskList& list);
  /// Gradients are added to dq, dk, dv. Returns the bytes copied, as forward.
  int64_t backward(const kernels::TaskList& list);

 private:
  KernelRequest request_;  // `choice` is what was chosen, not kAuto
  kernels::Isa isa_ = kernels::Isa::kPortable;
  std::unique_ptr<kernels::ThreadPool> pool_;  // of kCpu
};

}  // namespace distca
