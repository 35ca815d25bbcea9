#include "distca/runtime/message_rows.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>

#include "distca/base/error.h"
#include "distca/comm/aten_types.h"

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
    move(local.narrow(0, range.row, tokens), part.narrow(0, row, tokens));
    row += tokens;
  }
}

}  // namespace

std::byte* MessageRows::begin(int index) const {
  int64_t offset = 0;
  for (int i = 0; i < index; ++i) offset += parts_[i].bytes();
  return memory_ + offset;
}

at::Tensor MessageRows::part(int index) const {
  const MessagePart& part = parts_[index];
  const auto options = at::dtype(aten_type(part.type)).device(aten_device(cuda_device_));
  const std::array<int64_t, 3> sizes{part.rows, part.heads, part.dim};
  return part.bytes() == 0 ? at::empty(sizes, options)
                           : at::from_blob(begin(index), sizes, options);
}

kernels::Rows MessageRows::rows(int index, int64_t row) const {
  const MessagePart& part = parts_[index];
  const int64_t token_stride = part.heads * part.dim;
  return {.data = begin(index) + row * token_stride * element_bytes(part.type),
          .token_stride = token_stride,
          .head_stride = part.dim};
}

void MessageRows::fill_with_zeros() const {
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].bytes() > 0) part(static_cast<int>(i)).zero_();
  }
}

int64_t pack(const at::Tensor& local, const std::vector<RowRange>& ranges, const at::Tensor& part) {
  for_ranges(local, ranges, part,
             [](const at::Tensor& home, const at::Tensor& message) { message.copy_(home); });
  return bytes_of(part);
}

int64_t unpack(const at::Tensor& part, const std::vector<RowRange>& ranges, const at::Tensor& local,
               const std::vector<Range>& skip) {
  int64_t first = 0;  // of the range in the message
  int64_t bytes = 0;
  for (const RowRange& range : ranges) {
    const int64_t end = range.row + range.tokens.size();
    auto next = std::partition_point(skip.begin(), skip.end(),
                                     [&range](const Range& rows) { return rows.end <= range.row; });
    for (int64_t row = range.row; row < end; ++next) {
      const bool skips = next != skip.end() && next->begin < end;
      const int64_t stop = skips ? std::max(next->begin, row) : end;
      const at::Tensor rows = part.narrow(0, first + row - range.row, stop - row);
      local.narrow(0, row, stop - row).copy_(rows);
      bytes += bytes_of(rows);
      if (!skips) break;
      row = next->end;
    }
    first += range.tokens.size();
  }
  return bytes;
}

int64_t add(const at::Tensor& part, const std::vector<RowRange>& ranges, const at::Tensor& local) {
  for_ranges(local, ranges, part,
             [](const at::Tensor& home, const at::Tensor& message) { home.add_(message); });
  return bytes_of(part);
}

int64_t convert(const MessageRows& from, const MessageRows& to) {
  int64_t bytes = 0;
  for (int i = 0; i < 3; ++i) {
    const at::Tensor part = to.part(i);
    part.copy_(from.part(i));
    bytes += bytes_of(part);
  }
  return bytes;
}

}  // namespace distca
