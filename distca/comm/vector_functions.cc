#include "distca/comm/vector_functions.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

namespace distca {

void settle_vector_functions() {
  [[maybe_unused]] static const bool settled = [] {
    const c10::NoGradGuard no_gradients;
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      const at::Tensor one = at::ones({1}, type);
      for (const at::Tensor& value : {one.cos(), one.sin(), one.exp(), one.log(), one.tanh()})
        static_cast<void>(value);
    }
    return true;
  }();
}

}  // namespace distca
