#pragma once
// These functions compute a list of tasks through a variable-length attention operator. They play
// the launches of kernels/varlen_launches.h with ATen tensors, on whatever device the operator
// runs.
//
// Keys are read where they lie, or are gathered once. Queries, dO and the results are wrapped where
// they lie if the pieces of a launch adjoin in one buffer; else they are packed. A broken shape is
// a CHECK.
//
// Threads. Calls on disjoint outputs may run at the same time if the operator allows it.

#include <array>
#include <cstdint>
#include <utility>

#include "distca/cost/pass.h"
#include "distca/kernels/attention.h"
#include "distca/kernels/varlen_launches.h"

namespace at {
class Tensor;
}

namespace distca {

class TaskLaunches;

/// cu_seqlens_q, key_starts and keys_used of a launch where the operator reads them.
using LaunchLists = std::array<at::Tensor, 3>;

/// An operator that computes one launch at a time. It is given q [query rows, H, D],
/// k [key rows, G, D] and v [key rows, G, E] of the launch.
class VarlenOperator {
 public:
  virtual ~VarlenOperator() = default;
  /// Returns O [query rows, H, E] in the type of q, and LSE [H, query rows] in the accumulator's
  /// type.
  virtual std::pair<at::Tensor, at::Tensor> forward(const kernels::VarlenLaunch& launch,
                                                    const LaunchLists& lists, const at::Tensor& q,
                                                    const at::Tensor& k,
                                                    const at::Tensor& v) const = 0;
  /// Returns dQ, dK and dV in the shapes of q, k and v, written where a sequence of the launch has
  /// rows. `o` is any O whose row sum with d_o is delta. `lse` [H, query rows] is contiguous.
  virtual std::array<at::Tensor, 3> backward(const kernels::VarlenLaunch& launch,
                                             const LaunchLists& lists, const at::Tensor& q,
                                             const at::Tensor& k, const at::Tensor& v,
                                             const at::Tensor& d_o, const at::Tensor& o,
                                             const at::Tensor& lse) const = 0;
};

/// Makes the launches of one pass, for the calls that get them.
void varlen_prepare(const kernels::Shape& shape, ScalarType type, const kernels::TaskList& list,
                    int cuda_device, Pass pass, TaskLaunches* launches);
/// Computes O and LSE. The keys of every task must be consecutive. `cuda_device` says where all
/// pointers live; -1 is the CPU. Returns the bytes that were copied: gathered keys, packed rows,
/// and O and LSE that were put where they belong. `launches` are those of earlier calls with the
/// same tasks and pass; with null, they are made for this call.
int64_t varlen_forward(const kernels::Shape& shape, ScalarType type, ScalarType o_type,
                       const kernels::TaskList& list, int cuda_device, const VarlenOperator& op,
                       TaskLaunches* launches = nullptr);
/// Adds gradients to dq, dk and dv, launch after launch: the same tasks give the same order.
/// Returns the bytes that were copied, as varlen_forward does.
int64_t varlen_backward(const kernels::Shape& shape, ScalarType type, const kernels::TaskList& list,
                        int cuda_device, const VarlenOperator& op,
                        TaskLaunches* launches = nullptr);

/// Does what kernels::output_from_delta does, on any device: puts an O like d_o into `o`. d_o is
/// [rows, H, E], and delta is [rows, H, 1] in the accumulator's type.
void aten_output_from_delta(const at::Tensor& d_o, const at::Tensor& delta, at::Tensor o);

}  // namespace distca
