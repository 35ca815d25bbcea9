#pragma once
// RowMoves copies, adds and clears runs of rows. Rows on a device move together, in one operator
// for all runs of a kind; rows on a CPU move at once, one run after another.
//
//     RowMoves moves(cuda_device);
//     for (const Run& run : runs) moves.copy(to(run), from(run));
//     moves.play();
//
// Tensors of a device must live until play(). Destinations of what is played together must not
// overlap. Thread rule: one thread.

#include <cstdint>
#include <vector>

namespace at {
class Tensor;
}

namespace distca {

class RowMoves {
 public:
  /// -1 is the CPU.
  explicit RowMoves(int cuda_device);
  ~RowMoves();
  RowMoves(const RowMoves&) = delete;
  RowMoves& operator=(const RowMoves&) = delete;

  /// Both have the same sizes. A copy may change the type; sums in one type alone go together.
  void copy(const at::Tensor& to, const at::Tensor& from);
  void add(const at::Tensor& to, const at::Tensor& from);
  void clear(const at::Tensor& tensor);
  /// Does what has been asked for since the last call: copies, then clearing, then sums.
  void play();

  /// Bytes of the sources of all copies so far.
  int64_t copied_bytes() const { return copied_bytes_; }

 private:
  struct Pairs;
  void put(std::vector<Pairs>& kinds, const at::Tensor& to, const at::Tensor& from) const;

  const bool together_;
  int64_t copied_bytes_ = 0;
  std::vector<Pairs> copies_, sums_;  // by types
  std::vector<at::Tensor> cleared_;
};

}  // namespace distca
