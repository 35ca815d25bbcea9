#pragma once
// Tensors of several sizes in one piece of memory: one allocation, however many there are. Include
// <ATen/ATen.h> before this header. Thread rule: one thread.
//
//     at::Tensor q, k;
//     ScratchTensors scratch(cuda_device);
//     scratch.want(q, type, {rows, heads, dim}), scratch.want(k, type, {rows, heads, dim});
//     scratch.make();  // q and k are valid now, as long as `scratch` lives; their numbers are not
//     set

#include <array>
#include <cstdint>
#include <vector>

#include "distca/base/integers.h"
#include "distca/comm/aten_types.h"
#include "distca/runtime/tensor_rows.h"

namespace distca {

class ScratchTensors {
 public:
  /// -1 is the CPU.
  explicit ScratchTensors(int cuda_device) : cuda_device_(cuda_device) {}

  /// `tensor` must live until make().
  void want(at::Tensor& tensor, ScalarType type, const std::array<int64_t, 3>& sizes) {
    wanted_.push_back({&tensor, type, sizes, bytes_});
    const int64_t numbers = sizes[0] * sizes[1] * sizes[2];
    bytes_ += round_up(numbers * element_bytes(type), kAlignment);
  }
  void make() {
    if (bytes_ == 0) return;
    memory_ = at::empty({bytes_}, at::dtype(at::kByte).device(aten_device(cuda_device_)));
    auto* const begin = static_cast<std::byte*>(memory_.data_ptr());
    for (const auto& [tensor, type, sizes, offset] : wanted_) {
      *tensor = tensor_of(begin + offset, type, {sizes[0], sizes[1], sizes[2]},
                          {sizes[1] * sizes[2], sizes[2], 1}, cuda_device_);
    }
  }

 private:
  static constexpr int64_t kAlignment = 64;
  struct Wanted {
    at::Tensor* tensor;
    ScalarType type;
    std::array<int64_t, 3> sizes;
    int64_t offset;
  };

  int cuda_device_;
  int64_t bytes_ = 0;
  std::vector<Wanted> wanted_;
  at::Tensor memory_;
};

}  // namespace distca
