#pragma once
// A message of the exchange as tensors, and the copies between it and local rows. Thread rule: one
// thread.

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
/// multiples of 8, so that every part begins at a multiple of its element's size. Borrows the
/// memory; copying is cheap.
class MessageRows {
 public:
  /// `memory`: null where no part has rows. `cuda_device`: where it lies, -1 = CPU.
  MessageRows(std::byte* memory, const std::array<MessagePart, 3>& parts, int cuda_device)
      : memory_(memory), parts_(parts), cuda_device_(cuda_device) {}

  at::Tensor part(int index) const;
  /// The part from `row` on, as kernels take it.
  kernels::Rows rows(int index, int64_t row = 0) const;
  int64_t tokens(int index) const { return parts_[index].rows; }
  void fill_with_zeros() const;

 private:
  std::byte* begin(int index) const;

  std::byte* memory_;
  std::array<MessagePart, 3> parts_;
  int cuda_device_;
};

// `part` holds the rows of `ranges` one after another. All return the bytes they moved.

/// Copies local rows into a message part.
int64_t pack(const at::Tensor& local, const std::vector<RowRange>& ranges, const at::Tensor& part);
/// Copies a message part to local rows, but for the rows of `skip` (ascending, disjoint).
int64_t unpack(const at::Tensor& part, const std::vector<RowRange>& ranges, const at::Tensor& local,
               const std::vector<Range>& skip = {});
/// Adds a message part to local rows.
int64_t add(const at::Tensor& part, const std::vector<RowRange>& ranges, const at::Tensor& local);
/// Copies a message into one of other types.
int64_t convert(const MessageRows& from, const MessageRows& to);

}  // namespace distca
