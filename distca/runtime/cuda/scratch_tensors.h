#pragma once
// Contiguous tensors of several sizes in one piece of memory, which lives as long as one of them:
// one allocation, however many there are. Include <ATen/ATen.h> before this header. Thread rule:
// one thread.
//
//     at::Tensor q, k;
//     ScratchTensors scratch;
//     scratch.want(q, type, {rows, heads, dim}), scratch.want(k, type, {rows, heads, dim});
//     scratch.make(device);  // q and k are valid now; their numbers are not set

#include <cstdint>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "distca/base/integers.h"

namespace distca {

class ScratchTensors {
 public:
  /// `tensor` must live until make().
  void want(at::Tensor& tensor, at::ScalarType type, std::vector<int64_t> sizes) {
    const int64_t numbers =
        std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
    wanted_.push_back({&tensor, type, std::move(sizes), bytes_});
    bytes_ += round_up(numbers * static_cast<int64_t>(c10::elementSize(type)), kAlignment);
  }
  /// `zeros`: all numbers are 0.
  void make(const at::Device& device, bool zeros = false) {
    if (bytes_ == 0) return;
    const at::TensorOptions options = at::TensorOptions(device).dtype(at::kByte);
    const at::Tensor memory = zeros ? at::zeros({bytes_}, options) : at::empty({bytes_}, options);
    auto* const begin = static_cast<std::byte*>(memory.data_ptr());
    for (const auto& [tensor, type, sizes, offset] : wanted_) {
      *tensor = at::for_blob(begin + offset, sizes)
                    .deleter([memory](void*) {})
                    .options(options.dtype(type))
                    .target_device(device)
                    .make_tensor();
    }
  }

 private:
  static constexpr int64_t kAlignment = 128;
  struct Wanted {
    at::Tensor* tensor;
    at::ScalarType type;
    std::vector<int64_t> sizes;
    int64_t offset;
  };

  int64_t bytes_ = 0;
  std::vector<Wanted> wanted_;
};

}  // namespace distca
