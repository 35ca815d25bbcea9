#pragma once
// A message of the exchange as tensors, and the copies between it and local rows. Thread rule: one
// thread.

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <vector>

#include "distca/base/scalar_type.h"
#include "distca/plan/exchange.h"

namespace at {
class Tensor;
}

namespace distca {

/// [rows, heads, dim] of one type inside a message.
struct BlockPart {
  int64_t rows = 0;
  int64_t heads = 0;
  int64_t dim = 0;
  ScalarType type = ScalarType::kFloat32;

  int64_t bytes() const { return rows * heads * dim * element_bytes(type); }
};

/// The parts of one message as tensors, where it lies. Head dimensions are multiples of 8, so that
/// every part begins at a multiple of its element's size. Borrows the memory.
class Block {
 public:
  /// The parts lie one after another in `memory`, which has `bytes` bytes: a CHECK that they fill
  /// it. `cuda_device`: where it lies, -1 = CPU.
  Block(std::byte* memory, int64_t bytes, std::initializer_list<BlockPart> parts, int cuda_device);

  size_t size() const;  // parts
  const at::Tensor& part(size_t index) const;
  void fill_with_zeros() const;

 private:
  std::shared_ptr<const std::vector<at::Tensor>> parts_;
};

// `part` holds the rows of `ranges` one after another. All return the bytes they moved.

/// Copies local rows into a message part.
int64_t pack(const at::Tensor& local, const std::vector<RowRange>& ranges, const at::Tensor& part);
/// Copies a message part to local rows, but for the rows of `skip` (ascending, disjoint).
int64_t unpack(const at::Tensor& part, const std::vector<RowRange>& ranges, const at::Tensor& local,
               const std::vector<Range>& skip = {});
/// Adds a message part to local rows.
int64_t add(const at::Tensor& part, const std::vector<RowRange>& ranges, const at::Tensor& local);
/// Copies a block into one of other types.
int64_t convert(const Block& from, const Block& to);

}  // namespace distca
