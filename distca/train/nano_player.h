#pragma once
// Plays the linear phases of one nano-batch on one worker, as the operations of a program name
// them: whole ones (nano_phases.h), or those that ranks divide (tensor_nano_phases.h). Include
// <ATen/ATen.h> before this header. Thread rule: one thread.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "distca/cost/memory_price.h"
#include "distca/program/program.h"

namespace distca {

/// Rows that go through a phase some at a time.
struct RowChunks {
  int64_t rows = 0;
  int64_t at_once = 1;

  /// work(begin, count) for each chunk, at least once: no rows have shapes, too.
  template <typename Work>
  void for_each(const Work& work) const {
    int64_t begin = 0;
    do {
      work(begin, std::min(at_once, rows - begin));
      begin += at_once;
    } while (begin < rows);
  }
  /// Puts a chunk's rows into those of all.
  void put(at::Tensor& all, const at::Tensor& part, int64_t begin) const {
    if (part.size(0) == rows) {
      all = part;
      return;
    }
    if (!all.defined()) {
      std::vector<int64_t> sizes = part.sizes().vec();
      sizes[0] = rows;
      all = at::empty(sizes, part.options());
    }
    all.narrow(0, begin, part.size(0)).copy_(part);
  }
};

/// How a nano-batch's phases are played.
struct NanoOptions {
  Recompute recompute = Recompute::kNone;
  bool keys_travel_again = false;  // servers get Q, K, V again for backward
  int64_t chunk_rows = 0;          // rows that go through a phase at a time under kFull
  int64_t loss_rows = 0;           // rows whose logits exist at the same time
  double loss_scale = 1;           // factor by which the gradients are scaled

  bool by_chunks() const { return recompute == Recompute::kFull; }
  /// Without kFull, all rows are one chunk.
  RowChunks chunks(int64_t rows) const {
    return {.rows = rows, .at_once = by_chunks() ? chunk_rows : std::max<int64_t>(1, rows)};
  }
};

class NanoPlayer {
 public:
  virtual ~NanoPlayer() = default;

  /// Plays a phase of forward but the loss, or of backward, where the loss's has been played.
  virtual void play(const Op& op) = 0;
  /// Computes the loss and does its backward. Returns the sum of the loss in parts, one for each
  /// chunk of rows, in nats. It is undefined on a rank of a server that does not report it.
  virtual at::Tensor loss() = 0;
  /// Returns the same sums where grad mode is off. `of_tokens` becomes the loss of each token.
  virtual at::Tensor evaluated_loss(at::Tensor* of_tokens) = 0;
  /// Returns true once backward is over and nothing of it is left for later.
  virtual bool is_done() const = 0;

  // The activations and gradients that neighbouring stages hand to each other: this rank's rows
  // [rows, C] in the compute type.
  virtual void begin(const at::Tensor& x) = 0;
  virtual at::Tensor take_output() = 0;
  virtual void begin_backward(const at::Tensor& d_output) = 0;
  virtual at::Tensor take_gradient() = 0;  // by what begin() was given

  // Parts of a kGatherRows or kSumRows, with the names of OpPlayer (runtime/executor.h).
  virtual void pack(const Op& op) = 0;
  virtual void land(const Op& op) = 0;
};

}  // namespace distca
