#pragma once
// A message of the exchange as tensors, and the copies between it and local rows. Thread rule: one
// thread.

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <vector>

#include "distca/base/scalar_type.h"
#include "distca/comm/communicator.h"
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

/// One message: a flat buffer and its parts as tensors. Head dimensions are multiples of 8, so that
/// every part begins at a multiple of 16 bytes. Copies share the buffer.
class Block {
 public:
  /// Not initialised. `cuda_device`: where it lies, -1 = CPU.
  Block(std::initializer_list<BlockPart> parts, int cuda_device);

  const at::Tensor& part(size_t index) const;
  int64_t bytes() const;
  void fill_with_zeros();
  Message message(int peer, uint32_t tag) const;

 private:
  struct Tensors;
  std::shared_ptr<Tensors> tensors_;
};

// `part` holds the rows of `ranges` one after another. All return the bytes they moved.

/// Copies local rows into a message part.
int64_t pack(const at::Tensor& local, const std::vector<RowRange>& ranges, const at::Tensor& part);
/// Copies a message part to local rows, but for the rows of `skip` (ascending, disjoint).
int64_t unpack(const at::Tensor& part, const std::vector<RowRange>& ranges, const at::Tensor& local,
               const std::vector<Range>& skip = {});
/// Adds a message part to local rows.
int64_t add(const at::Tensor& part, const std::vector<RowRange>& ranges, const at::Tensor& local);

}  // namespace distca
