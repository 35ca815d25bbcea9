#include "distca/runtime/tensor_rows.h"

#include <ATen/ATen.h>

#include <cstddef>

#include "distca/comm/aten_types.h"

namespace distca {
namespace {

std::byte* element(const at::Tensor& tensor, int64_t index) {
  return static_cast<std::byte*>(tensor.data_ptr()) +
         index * static_cast<int64_t>(tensor.element_size());
}

}  // namespace

kernels::Rows rows_of(const at::Tensor& tensor, int64_t row) {
  if (!tensor.defined()) return {};
  return {.data = element(tensor, row * tensor.stride(0)),
          .token_stride = tensor.stride(0),
          .head_stride = tensor.stride(1)};
}

at::Tensor tensor_of(void* data, ScalarType type, std::initializer_list<int64_t> sizes,
                     std::initializer_list<int64_t> strides, int cuda_device) {
  const at::Device device = aten_device(cuda_device);
  return at::for_blob(data, at::IntArrayRef(sizes))
      .strides(at::IntArrayRef(strides))
      .options(at::TensorOptions(device).dtype(aten_type(type)))
      .target_device(device)  // else the driver is asked where the memory lies
      .make_tensor();
}

at::Tensor tensor_of(const kernels::Rows& rows, ScalarType type, int64_t tokens, int64_t heads,
                     int64_t dim, int cuda_device) {
  return tensor_of(rows.data, type, {tokens, heads, dim}, {rows.token_stride, rows.head_stride, 1},
                   cuda_device);
}

at::Tensor rows_at(const at::Tensor& tensor, int64_t row, int64_t tokens) {
  const at::TensorOptions options = tensor.options().requires_grad(false);
  const std::array<int64_t, 3> sizes = {tokens, tensor.size(1), tensor.size(2)};
  return at::for_blob(element(tensor, row * tensor.stride(0)), sizes)
      .strides(tensor.strides())
      .options(options)
      .target_device(tensor.device())
      .make_tensor();
}

at::Tensor piece_of(const at::Tensor& flat, int64_t begin, const std::array<int64_t, 3>& sizes) {
  return at::for_blob(element(flat, begin), sizes)
      .deleter([owner = flat](void*) {})
      .options(flat.options().requires_grad(false))
      .target_device(flat.device())
      .make_tensor();
}

}  // namespace distca
