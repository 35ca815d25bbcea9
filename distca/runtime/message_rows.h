#pragma once
// MessageRows shows a message of the exchange as tensors. The functions copy between a message and
// local rows. One thread uses an object.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "distca/kernels/attention.h"
#include "distca/plan/attention_exchange.h"
#include "distca/runtime/row_moves.h"

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
  /// All parts as one row, [1, 1, numbers]. They have one type (CHECK).
  at::Tensor flat() const;
  /// Returns the same parts in another type, at `memory`.
  MessageRows in_type(ScalarType type, std::byte* memory) const;

 private:
  std::byte* memory_;
  std::array<MessagePart, 3> parts_;
  int cuda_device_;
};

// In these functions, `part` holds the rows of `ranges` one after another. All of them give what
// they move to `moves`, which is played afterwards, and return the bytes of it.

/// Copies local rows into a part of a message.
int64_t pack(const at::Tensor& local, const std::vector<RowRange>& ranges, const at::Tensor& part,
             RowMoves& moves);
/// Copies a part of a message to local rows, except the rows of `skip`, which ascend and are
/// disjoint.
int64_t unpack(const at::Tensor& part, const std::vector<RowRange>& ranges, const at::Tensor& local,
               const std::vector<Range>& skip, RowMoves& moves);
/// Adds a part of a message to local rows.
int64_t add(const at::Tensor& part, const std::vector<RowRange>& ranges, const at::Tensor& local,
            RowMoves& moves);
/// Copies a message into a message of another type.
int64_t convert(const MessageRows& from, const MessageRows& to, RowMoves& moves);

}  // namespace distca
