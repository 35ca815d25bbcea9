#pragma once
// A list of tasks through a variable-length attention operator: plays the launches of
// kernels/varlen_launches.h with ATen tensors, on whatever device the operator runs.
//
// Keys are read where they lie, or gathered once; queries, dO and what comes out are wrapped where
// they lie if a launch's pieces adjoin in one buffer, else packed. Broken shapes are a CHECK.
// Thread rule: calls on disjoint outputs may run at the same time, if the operator allows it.

#include <array>
#include <cstdint>
#include <utility>

#include "distca/kernels/attention.h"
#include "distca/kernels/varlen_launches.h"

namespace at {
class Tensor;
}

namespace distca {

/// q [query rows, H, D], k [key rows, G, D], v [key rows, G, E] of one launch.
class VarlenOperator {
 public:
  virtual ~VarlenOperator() = default;
  /// O [query rows, H, E] in the type of q, LSE [H, query rows] in the accumulator's.
  virtual std::pair<at::Tensor, at::Tensor> forward(const kernels::VarlenLaunch& launch,
                                                    const at::Tensor& q, const at::Tensor& k,
                                                    const at::Tensor& v) const = 0;
  /// dQ, dK, dV in the shapes of q, k, v, written where a sequence of the launch has rows.
  /// o: any whose row sum with d_o is delta. lse [H, query rows], contiguous.
  virtual std::array<at::Tensor, 3> backward(const kernels::VarlenLaunch& launch,
                                             const at::Tensor& q, const at::Tensor& k,
                                             const at::Tensor& v, const at::Tensor& d_o,
                                             const at::Tensor& o, const at::Tensor& lse) const = 0;
};

/// Both return the bytes they copied: keys gathered, rows packed, O and LSE put where they belong.
/// Every task's keys are consecutive. `cuda_device`: where all pointers live, -1 = CPU.
int64_t varlen_forward(const kernels::Shape& shape, ScalarType type, ScalarType o_type,
                       const kernels::TaskList& list, int cuda_device, const VarlenOperator& op);
/// Gradients are added to dq, dk, dv, launch after launch: the same tasks, the same order.
int64_t varlen_backward(const kernels::Shape& shape, ScalarType type, const kernels::TaskList& list,
                        int cuda_device, const VarlenOperator& op);

/// kernels::output_from_delta on any device: d_o [rows, H, E], delta [rows, H] in the accumulator's
/// type; O like d_o, contiguous.
at::Tensor aten_output_from_delta(const at::Tensor& d_o, const at::Tensor& delta);

}  // namespace distca
