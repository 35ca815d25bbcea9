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

#include "distca/kernels/attention.h"
#include "distca/kernels/varlen_launches.h"

namespace at {
class Tensor;
}

namespace distca {

/// An operator that computes one launch at a time. It is given q [query rows, H, D],
/// k [key rows, G, D] and v [key rows, G, E] of the launch.
class VarlenOperator {
 public:
  virtual ~VarlenOperator() = default;
  /// Returns O [query rows, H, E] in the type of q, and LSE [H, query rows] in the accumulator's
  /// type.
  virtual std::pair<at::Tensor, at::Tensor> forward(const kernels::VarlenLaunch& launch,
                                                    const at::Tensor& q, const at::Tensor& k,
                                                    const at::Tensor& v) const = 0;
  /// Returns dQ, dK and dV in the shapes of q, k and v, written where a sequence of the launch has
  /// rows. `o` is any O whose row sum with d_o is delta. `lse` [H, query rows] is contiguous.
  virtual std::array<at::Tensor, 3> backward(const kernels::VarlenLaunch& launch,
                                             const at::Tensor& q, const at::Tensor& k,
                                             const at::Tensor& v, const at::Tensor& d_o,
                                             const at::Tensor& o, const at::Tensor& lse) const = 0;
};

/// Computes O and LSE. The keys of every task must be consecutive. `cuda_device` says where all
/// pointers live; -1 is the CPU. Returns the bytes that were copied: gathered keys, packed rows,
/// and O and LSE that were put where they belong.
int64_t varlen_forward(const kernels::Shape& shape, ScalarType type, ScalarType o_type,
                       const kernels::TaskList& list, int cuda_device, const VarlenOperator& op);
/// Adds gradients to dq, dk and dv, launch after launch: the same tasks give the same order.
/// Returns the bytes that were copied, as varlen_forward does.
int64_t varlen_backward(const kernels::Shape& shape, ScalarType type, const kernels::TaskList& list,
                        int cuda_device, const VarlenOperator& op);

/// Does what kernels::output_from_delta does, on any device. d_o is [rows, H, E], and delta is
/// [rows, H] in the accumulator's type. Returns an O like d_o, contiguous.
at::Tensor aten_output_from_delta(const at::Tensor& d_o, const at::Tensor& delta);

}  // namespace distca
