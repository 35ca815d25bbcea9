#include "distca/runtime/exchange_block.h"

#include <ATen/ATen.h>

#include <algorithm>

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

struct Block::Tensors {
  at::Tensor bytes;
  std::vector<at::Tensor> parts;
};

Block::Block(std::initializer_list<BlockPart> parts, int cuda_device)
    : tensors_(std::make_shared<Tensors>()) {
  int64_t total = 0;
  for (const BlockPart& part : parts) total += part.bytes();
  const at::Device device = cuda_device < 0
                                ? at::Device(at::kCPU)
                                : at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(cuda_device));
  tensors_->bytes = at::empty({total}, at::dtype(at::kByte).device(device));
  int64_t at_byte = 0;
  for (const BlockPart& part : parts) {
    tensors_->parts.push_back(tensors_->bytes.narrow(0, at_byte, part.bytes())
                                  .view(aten_type(part.type))
                                  .view({part.rows, part.heads, part.dim}));
    at_byte += part.bytes();
  }
}

const at::Tensor& Block::part(size_t index) const { return tensors_->parts[index]; }
int64_t Block::bytes() const { return tensors_->bytes.numel(); }
void Block::fill_with_zeros() { tensors_->bytes.zero_(); }

Message Block::message(int peer, uint32_t tag) const {
  return {.peer = peer,
          .tag = tag,
          .data = static_cast<std::byte*>(tensors_->bytes.data_ptr()),
          .bytes = bytes()};
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

}  // namespace distca
