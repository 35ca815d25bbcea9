#include "distca/runtime/message_rows.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "distca/base/error.h"
#include "distca/runtime/tensor_rows.h"

namespace distca {
namespace {

int64_t bytes_of(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }

/// Calls `move(rows of local, rows of part)` for each range.
template <typename Move>
void for_ranges(const at::Tensor& local, const std::vector<RowRange>& ranges,
                const at::Tensor& part, const Move& move) {
  int64_t row = 0;
  for (const RowRange& range : ranges) {
    const int64_t tokens = range.tokens.size();
    move(rows_at(local, range.row, tokens), rows_at(part, row, tokens));
    row += tokens;
  }
}

}  // namespace

at::Tensor MessageRows::part(int index) const {
  const MessagePart& part = parts_[index];
  return tensor_of(rows(index), part.type, part.rows, part.heads, part.dim, cuda_device_);
}

at::Tensor MessageRows::flat() const {
  int64_t numbers = 0;
  for (const MessagePart& part : parts_) {
    DISTCA_CHECK(part.type == parts_[0].type, "parts of {} and {}", long_name(parts_[0].type),
                 long_name(part.type));
    numbers += part.rows * part.heads * part.dim;
  }
  return tensor_of(memory_, parts_[0].type, {1, 1, numbers}, {numbers, numbers, 1}, cuda_device_);
}

MessageRows MessageRows::in_type(ScalarType type, std::byte* memory) const {
  MessageRows other = *this;
  other.memory_ = memory;
  for (MessagePart& part : other.parts_) part.type = type;
  return other;
}

kernels::Rows MessageRows::rows(int index, int64_t row) const {
  const MessagePart& part = parts_[index];
  const int64_t token_stride = part.heads * part.dim;
  int64_t offset = row * token_stride * element_bytes(part.type);
  for (int i = 0; i < index; ++i) offset += parts_[i].bytes();
  return {.data = memory_ + offset, .token_stride = token_stride, .head_stride = part.dim};
}

int64_t pack(const at::Tensor& local, const std::vector<RowRange>& ranges, const at::Tensor& part,
             RowMoves& moves) {
  for_ranges(local, ranges, part, [&moves](const at::Tensor& home, const at::Tensor& message) {
    moves.copy(message, home);
  });
  return bytes_of(part);
}

int64_t unpack(const at::Tensor& part, const std::vector<RowRange>& ranges, const at::Tensor& local,
               const std::vector<Range>& skip, RowMoves& moves) {
  int64_t first = 0;  // first row of the range in the message
  int64_t bytes = 0;
  for (const RowRange& range : ranges) {
    const int64_t end = range.row + range.tokens.size();
    auto next = std::partition_point(skip.begin(), skip.end(),
                                     [&range](const Range& rows) { return rows.end <= range.row; });
    for (int64_t row = range.row; row < end; ++next) {
      const bool skips = next != skip.end() && next->begin < end;
      const int64_t stop = skips ? std::max(next->begin, row) : end;
      const at::Tensor rows = rows_at(part, first + row - range.row, stop - row);
      moves.copy(rows_at(local, row, stop - row), rows);
      bytes += bytes_of(rows);
      if (!skips) break;
      row = next->end;
    }
    first += range.tokens.size();
  }
  return bytes;
}

int64_t add(const at::Tensor& part, const std::vector<RowRange>& ranges, const at::Tensor& local,
            RowMoves& moves) {
  for_ranges(local, ranges, part, [&moves](const at::Tensor& home, const at::Tensor& message) {
    moves.add(home, message);
  });
  return bytes_of(part);
}

int64_t convert(const MessageRows& from, const MessageRows& to, RowMoves& moves) {
  const at::Tensor numbers = to.flat();
  moves.copy(numbers, from.flat());
  return bytes_of(numbers);
}

}  // namespace distca
