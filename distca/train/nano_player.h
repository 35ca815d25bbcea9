#pragma once
// Plays the linear phases of one nano-batch on one worker, as the operations of a program name
// them, and keeps what stands in memory between forward and backward (train.recompute). Phases are
// whole (nano_phases.h), or ranks divide them (tensor_nano_phases.h):
//
//     NanoPhases nano(model, attention, /*nano_batch=*/0, tokens, options);
//     nano.play(embed);
//     nano.play(pre_attention);   // gives Q, K, V to `attention`, which a program plays
//     nano.play(post_attention);  // takes O
//     const at::Tensor sums = nano.loss(nullptr);  // on the device; who wants the number reads it
//     nano.play(backward_post_attention);
//
// Backward of a layer's phases may leave the gradients by its matrices for later: then a
// kWeightGradient adds them.
//
// On a stage of a pipeline, begin() and take_output() stand in place of kEmbed and the loss, and in
// backward begin_backward() and take_gradient() in place of the loss's and the embedding's.
//
// With Recompute::kFull, phases go through the tokens by chunks of rows, so that the rows inside an
// MLP never exist for all of them. Include <ATen/ATen.h> before this header. Thread rule: one
// thread.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "distca/cost/memory_price.h"
#include "distca/model/llama.h"
#include "distca/program/program.h"
#include "distca/runtime/step_attention.h"
#include "distca/train/loader.h"

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
  /// Returns true if Q, K and V of a layer go after its forward, and backward makes them again.
  bool makes_qkv_again() const { return by_chunks() && !keys_travel_again; }
  /// Without kFull, all rows are one chunk.
  RowChunks chunks(int64_t rows) const {
    return {.rows = rows, .at_once = by_chunks() ? chunk_rows : std::max<int64_t>(1, rows)};
  }
};

class NanoPlayer {
 public:
  /// Borrows the first two. `tokens` are those of the whole server. Where grad mode is off, nothing
  /// is kept for backward. Layers have the model's numbers.
  NanoPlayer(const Llama& model, StepAttention& attention, int nano_batch,
             const LocalTokens& tokens, const NanoOptions& options);
  virtual ~NanoPlayer() = default;

  /// Plays a phase of forward but the loss, or of backward, where the loss's has been played.
  void play(const Op& op);
  /// Computes the loss. Returns the sum of the loss in parts, one for each chunk of rows, in nats.
  /// It is undefined on a rank of a server that does not report it. Where `of_tokens` is null, does
  /// its backward, too. Otherwise, where grad mode is off, that becomes the loss of each token.
  virtual at::Tensor loss(at::Tensor* of_tokens) = 0;
  /// Returns true once backward is over and nothing of it is left for later.
  bool is_done() const;

  // The activations and gradients that neighbouring stages hand to each other: this rank's rows
  // [rows, C] in the compute type.
  void begin(const at::Tensor& x);
  at::Tensor take_output();
  void begin_backward(const at::Tensor& d_output) { gradient_ = d_output; }
  at::Tensor take_gradient();  // by what begin() was given

  // Parts of a kGatherRows or kSumRows, with the names of OpPlayer (runtime/executor.h).
  virtual void pack(const Op& op) = 0;
  virtual void land(const Op& op) = 0;

 protected:
  struct Qkv {
    at::Tensor q, k, v;
  };
  using Kept = std::shared_ptr<Llama::PreAttention>;

  virtual void play_forward(const Op& op) = 0;
  virtual void play_backward(const Op& op) = 0;
  /// Computes Q, K and V of some rows. Where `kept` is null, there is no backward.
  virtual void qkv(int layer, const at::Tensor& rows, const Llama::Rope& rope, Qkv& made,
                   Kept* kept) const = 0;
  /// Computes those of all rows. What backward of each chunk reads goes to `kept`, if it is not
  /// null.
  Qkv qkv_of_all(int layer, const at::Tensor& rows, std::vector<Kept>* kept) const;
  /// Frees what core attention need not have after forward, which has used O.
  void drop_after_forward(int layer);
  std::shared_ptr<const Llama::Rope> rope_of(int64_t begin, int64_t count) const;
  /// Returns true if forward keeps what backward of its phases reads.
  bool keeps() const;
  Keep keep() const;
  void end_backward();

  const Llama& model_;
  StepAttention& attention_;
  const int nano_batch_;
  const NanoOptions options_;
  const RowChunks chunks_;                // all rows of the server, some at a time
  at::Tensor ids_, targets_, positions_;  // one element for each of these rows
  at::Tensor x_;                          // running activation
  at::Tensor gradient_;                   // running gradient of the activation
  /// [layer] until its kWeightGradient.
  std::vector<std::shared_ptr<Llama::LeftGradients>> left_;

 private:
  std::shared_ptr<const Llama::Rope> rope_;
  bool is_over_ = false;  // backward is
};

}  // namespace distca
