#pragma once
// MessageRows shows a message of the exchange as tensors. The functions copy between a message and
// local rows. One thread uses an object.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "distca/kernels/attention.h"
#include "distca/plan/attention_exchange.h"

namespace at {
class Tensor;
}

namespace distca {

/// One message where it lies: parts of [rows, heads, dim], one after another. Head dimensions are
/// multiples of 8, so every part begins at a multiple of its element's size. The object borrows the
/// memory and is cheap to copy.
class MessageRows {
 public:
  /// `memory` is null if no part has rows. `cuda_device` says where it lies; -1 is the CPU.
  MessageRows(std::byte* memory, const std::array<MessagePart, 3>& parts, int cuda_device)
      : memory_(memory), parts_(parts), cuda_device_(cuda_device) {}

  at::Tensor part(int index) const;
  /// The rows of the part from `row` on, as kernels take them.
  kernels::Rows rows(int index, int64_t row = 0) const;
  int64_t tokens(int index) const { return parts_[index].rows; }
  void fill_with_zeros() const;

 private:
  std::byte* begin(int index) const;

  std::byte* memory_;
  std::array<MessagePart, 3> parts_;
  int cuda_device_;
};

// In these functions, `part` holds the rows of `ranges` one after another. All of them return the
// bytes that they moved.

/// Copies local rows into a part of a message.
int64_t pack(const at::Tensor& local, const std::vector<RowRange>& ranges, const at::Tensor& part);
/// Copies a part of a message to local rows, except the rows of `skip`, which ascend and are
/// disjoint.
int64_t unpack(const at::Tensor& part, const std::vector<RowRange>& ranges, const at::Tensor& local,
               const std::vector<Range>& skip = {});
/// Adds a part of a message to local rows.
int64_t add(const at::Tensor& part, const std::vector<RowRange>& ranges, const at::Tensor& local);
/// Copies a message into a message of other types.
int64_t convert(const MessageRows& from, const MessageRows& to);

}  // namespace distca
