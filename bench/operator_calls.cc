#include <ATen/ATen.h>

#include "bench/operator_calls.h"

namespace distca::bench {

using kernels::VarlenLaunch;

std::pair<at::Tensor, at::Tensor> OperatorCalls::forward(const VarlenLaunch& launch,
                                                         const LaunchLists& lists,
                                                         const at::Tensor& q, const at::Tensor& k,
                                                         const at::Tensor& v,
                                                         const at::Tensor& place) const {
  calls_.emplace_back(
      [this, launch, lists, q, k, v, place] { op_.forward(launch, lists, q, k, v, place); });
  return op_.forward(launch, lists, q, k, v, place);
}

std::array<at::Tensor, 3> OperatorCalls::backward(const VarlenLaunch& launch,
                                                  const LaunchLists& lists, const at::Tensor& q,
                                                  const at::Tensor& k, const at::Tensor& v,
                                                  const OutputGradient& of_o) const {
  calls_.emplace_back(
      [this, launch, lists, q, k, v, of_o] { op_.backward(launch, lists, q, k, v, of_o); });
  return op_.backward(launch, lists, q, k, v, of_o);
}

void OperatorCalls::play() const {
  const c10::InferenceMode no_autograd;
  for (const auto& call : calls_) call();
}

}  // namespace distca::bench
