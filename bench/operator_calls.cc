#include <ATen/ATen.h>

#include "bench/operator_calls.h"

namespace distca::bench {

using kernels::VarlenLaunch;

std::pair<at::Tensor, at::Tensor> OperatorCalls::forward(const VarlenLaunch& launch,
                                                         const LaunchLists& lists,
                                                         const at::Tensor& q, const at::Tensor& k,
                                                         const at::Tensor& v) const {
  calls_.emplace_back([this, launch, lists, q, k, v] { op_.forward(launch, lists, q, k, v); });
  return op_.forward(launch, lists, q, k, v);
}

std::array<at::Tensor, 3> OperatorCalls::backward(const VarlenLaunch& launch,
                                                  const LaunchLists& lists, const at::Tensor& q,
                                                  const at::Tensor& k, const at::Tensor& v,
                                                  const at::Tensor& d_o, const at::Tensor& o,
                                                  const at::Tensor& lse) const {
  calls_.emplace_back([this, launch, lists, q, k, v, d_o, o, lse] {
    op_.backward(launch, lists, q, k, v, d_o, o, lse);
  });
  return op_.backward(launch, lists, q, k, v, d_o, o, lse);
}

void OperatorCalls::play() const {
  const c10::InferenceMode no_autograd;
  for (const auto& call : calls_) call();
}

}  // namespace distca::bench
