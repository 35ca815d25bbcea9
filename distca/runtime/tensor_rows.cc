#include "distca/runtime/tensor_rows.h"

#include <ATen/ATen.h>

#include <cstddef>

namespace distca {

kernels::Rows rows_of(const at::Tensor& tensor, int64_t row) {
  if (!tensor.defined()) return {};
  const int64_t offset = row * tensor.stride(0) * static_cast<int64_t>(tensor.element_size());
  return {.data = static_cast<std::byte*>(tensor.data_ptr()) + offset,
          .token_stride = tensor.stride(0),
          .head_stride = tensor.stride(1)};
}

}  // namespace distca
