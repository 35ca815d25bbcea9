#pragma once
// An AttentionKernel computes the tasks of core attention on one rank. It is the only place that
// chooses between DistCA's own kernel (kernels/cpu), ATen's and the reference, and it owns the
// threads of DistCA's kernel.
//
// Threads. Each rank has one kernel and uses it from one thread. While DistCA's kernel runs, ATen
// computes nothing on this rank.

#include <cstdint>
#include <memory>
#include <string>

#include "distca/cost/pass.h"
#include "distca/kernels/attention.h"
#include "distca/kernels/cpu/isa.h"
#include "distca/kernels/cpu/thread_pool.h"
#include "distca/kernels/kernel_choice.h"

namespace distca {

class Communicator;
class CompiledKernels;
struct Flash4;
class TaskLaunches;

class AttentionKernel {
 public:
  /// A request with a fault is a CHECK. Throws Error(kUsage) if DISTCA_KERNEL_ISA names an
  /// instruction set that this machine lacks or that does not exist (chosen_isa), and
  /// Error(kConfig) if FlashAttention 4 is asked for by name and cannot be used here.
  explicit AttentionKernel(const KernelRequest& request);
  ~AttentionKernel();

  const kernels::Shape& shape() const { return request_.shape; }
  /// Sets the scale of the scores for the calls from now on, in place of the request's scale.
  void set_softmax_scale(double scale) { request_.shape.softmax_scale = scale; }
  ScalarType type() const { return request_.type; }
  /// -1 is the CPU.
  int cuda_device() const { return request_.cuda_device; }
  /// The name of what computes: "cpu-avx512", "aten-cpu", "aten-cuda", "fa4 4.0.0" with the version
  /// of its kernels, "fa4 4.0.0 and aten-cuda by length" of launches, or "reference".
  std::string name() const;
  /// Why FlashAttention 4 computes nothing although the choice was free, in one line; else empty.
  std::string passed_over() const;
  /// passed_over() without its first words, for a line of another rank.
  const std::string& reason() const { return passed_over_; }
  bool has_flash4() const { return compiled_ != nullptr; }
  /// Takes ATen's kernel in its place from now on, for this reason.
  void pass_over_flash4(std::string reason);

  /// Makes what a device will be told of the tasks in forward or backward calls with these
  /// `launches`, so that the first of them need not. Rows may not be known yet. Nothing on a CPU.
  void prepare(Pass pass, const kernels::TaskList& list, TaskLaunches* launches) const;
  /// Computes O and LSE. `o_type` is the type of O: that of the inputs or, for partial results,
  /// their accumulator_type. Returns the bytes that were copied to and from an operator of ATen's,
  /// which is 0 on a CPU. Whoever computes the same tasks of one pass again, on other rows, gives
  /// the same `launches` each time: what a device is told of the tasks is then made once.
  int64_t forward(ScalarType o_type, const kernels::TaskList& list,
                  TaskLaunches* launches = nullptr);
  /// Adds the gradients to dq, dk and dv. Returns the bytes that were copied, as forward does.
  int64_t backward(const kernels::TaskList& list, TaskLaunches* launches = nullptr);

 private:
  void find_flash4();
  void choose_by_profile();
  Flash4 flash4() const;

  KernelRequest request_;     // `choice` is what was chosen, not kAuto
  bool is_measured_ = false;  // FlashAttention 4 computes the launches for which it is faster alone
  std::unique_ptr<const CompiledKernels> compiled_;  // null unless FlashAttention 4 computes
  std::string passed_over_;
  kernels::Isa isa_ = kernels::Isa::kPortable;
  std::unique_ptr<kernels::ThreadPool> pool_;  // null unless the choice is kCpu
};

/// All ranks call it together, each with the kernel that it chose for itself; `is_free` says that
/// nobody asked for one by name. Where FlashAttention 4 is not on all ranks, or is another one, a
/// free choice passes it over on all.
void agree_on_kernel(Communicator& comm, bool is_free, AttentionKernel& kernel);

}  // namespace distca
