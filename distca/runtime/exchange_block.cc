#include "distca/runtime/exchange_block.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>

#include "distca/base/error.h"
#include "distca/comm/aten_types.h"

namespace distca {
namespace {

int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<int64_t>(tensor.element_size());
}

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

Block::Block(std::byte* memory, int64_t bytes, std::initializer_list<BlockPart> parts,
             int cuda_device) {
  const at::Device device = cuda_device < 0
                                ? at::Device(at::kCPU)
                                : at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(cuda_device));
  std::vector<at::Tensor> tensors;
  int64_t offset = 0;
  for (const BlockPart& part : parts) {
    const auto options = at::dtype(aten_type(part.type)).device(device);
    const std::array<int64_t, 3> sizes{part.rows, part.heads, part.dim};
    tensors.push_back(part.rows == 0 ? at::empty(sizes, options)
                                     : at::from_blob(memory + offset, sizes, options));
    offset += part.bytes();
  }
  DISTCA_CHECK_EQ(offset, bytes);
  parts_ = std::make_shared<const std::vector<at::Tensor>>(std::move(tensors));
}

size_t Block::size() const { return parts_->size(); }
const at::Tensor& Block::part(size_t index) const { return (*parts_)[index]; }
void Block::fill_with_zeros() const {
  for (const at::Tensor& part : *parts_) part.zero_();
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

int64_t convert(const Block& from, const Block& to) {
  int64_t bytes = 0;
  for (size_t i = 0; i < to.size(); ++i) {
    to.part(i).copy_(from.part(i));
    bytes += bytes_of(to.part(i));
  }
  return bytes;
}

}  // namespace distca
