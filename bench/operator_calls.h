#pragma once
// The calls that a list of tasks makes of its attention operator, to be played by themselves: what
// the operator takes, without the rows that are copied around it.
//
//     const OperatorCalls calls(*fused_operator(shape, type));
//     varlen_forward(shape, type, type, list, cuda_device, calls);  // computes, and notes its
//     calls calls.play();                                                 // the same calls again
//
// Thread rule: one thread. The operator must outlive it. What calls were given stays in memory.

#include <functional>
#include <vector>

#include "distca/runtime/cuda/varlen_attention.h"

namespace distca::bench {

class OperatorCalls final : public VarlenOperator {
 public:
  explicit OperatorCalls(const VarlenOperator& op) : op_(op) {}

  kernels::LaunchLimits limits() const override { return op_.limits(); }
  int64_t query_tile(const kernels::VarlenLaunch& launch) const override {
    return op_.query_tile(launch);
  }
  std::pair<at::Tensor, at::Tensor> forward(const LaunchInput& input,
                                            const at::Tensor& place) const override;
  std::array<at::Tensor, 3> backward(const LaunchInput& input,
                                     const OutputGradient& of_o) const override;

  /// All calls so far, in their order. Their results are dropped.
  void play() const;

 private:
  const VarlenOperator& op_;
  mutable std::vector<std::function<void()>> calls_;
};

}  // namespace distca::bench
