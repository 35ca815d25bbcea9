#include <ATen/ATen.h>

#include "bench/operator_calls.h"

namespace distca::bench {

std::pair<at::Tensor, at::Tensor> OperatorCalls::forward(const LaunchInput& input,
                                                         const at::Tensor& place) const {
  calls_.emplace_back([this, launch = input.launch, lists = input.lists, q = input.q, k = input.k,
                       v = input.v, place] {
    op_.forward({launch, lists, q, k, v}, place);
  });
  return op_.forward(input, place);
}

std::array<at::Tensor, 3> OperatorCalls::backward(const LaunchInput& input,
                                                  const OutputGradient& of_o) const {
  calls_.emplace_back([this, launch = input.launch, lists = input.lists, q = input.q, k = input.k,
                       v = input.v, of_o] {
    op_.backward({launch, lists, q, k, v}, of_o);
  });
  return op_.backward(input, of_o);
}

void OperatorCalls::play() const {
  const c10::InferenceMode no_autograd;
  for (const auto& call : calls_) call();
}

}  // namespace distca::bench
