#pragma once
// A decoder of Llama's kind, divided into phases that contain everything but core attention.
// Pre-attention is the norm, the QKV projection and RoPE by position in the document.
// Post-attention is the output projection, the residual, the norm and the SwiGLU MLP (paper 2).
//
//     Llama model(config, /*seed=*/1, /*cuda_device=*/-1);
//     at::Tensor x = model.embed(ids), q, k, v;
//     const auto rope = model.rope(positions);
//     model.pre_attention(layer, x, *rope, &q, &k, &v);
//     x = model.post_attention(layer, x, o);  // o: core attention of q, k, v
//
// Letters: T local tokens, C hidden_size, H query heads, G key/value heads, D head_dim, V
// vocab_size.
//
// Parameters are fp32 main params (fp64 for an fp64 model); phases compute in `dtype`. Where that
// is another type, a copy of the matrices in it serves all nano-batches (refresh_copies). Where
// somebody else keeps the main params (MainParams::kElsewhere, for ZeRO-1), parameters are in the
// types in which phases use them, and there is no copy. Where ranks divide the matrices, their
// phases are others (model/tensor_phases.h). Backward is written out: no phase records a graph,
// whatever the grad mode. Gradients are added to the parameters' .grad, which is in the main
// params' type in any case. Thread rule: one thread a model.

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "distca/model/llama_config.h"
#include "distca/model/weight_table.h"

namespace at {
class Tensor;
}

namespace distca {

// Both are defined in model/operators.h.
enum class Keep : unsigned char;
struct Rope;

/// The initial value of what this rank holds of a weight, drawn in fp32 on the CPU from (seed,
/// name): the same on every rank, machine and device, for every dtype and number of threads, and
/// however ranks divide the weight.
at::Tensor initial_weight(const Weight& weight, uint64_t seed);
/// The elements of a full tensor in a box, such as Weight::box: a view of it. An empty box means
/// all.
at::Tensor part_of(const std::vector<Range>& box, const at::Tensor& full);

/// The weights of a model, or of one stage of it, and its phases.
class Llama {
 public:
  /// Draws the initial weights from the seed. `cuda_device` is -1 for the CPU.
  Llama(const LlamaConfig& config, uint64_t seed, int cuda_device,
        MainParams main_params = MainParams::kHere);
  /// Makes a stage of a pipeline. It has the phases of its own layers, which keep their numbers in
  /// the model, embed() on the first stage, and logits() and chunk_losses() on the last. `config`
  /// is the whole model's.
  Llama(const LlamaConfig& config, const Stage& stage, uint64_t seed, int cuda_device,
        MainParams main_params = MainParams::kHere);
  ~Llama();

  const LlamaConfig& config() const;
  const Stage& stage() const;

  /// Cosines and sines of some positions, which all layers of a nano-batch share.
  using Rope = distca::Rope;
  /// `positions` [T] int64 are those in the document.
  std::shared_ptr<const Rope> rope(const at::Tensor& positions) const;
  /// Cosines and sines of `count` of the positions, from `begin` on.
  std::shared_ptr<const Rope> part_of(const Rope& rope, int64_t begin, int64_t count) const;

  /// To be called once the parameters have changed, before the phases: their copies in the compute
  /// type take the new values. It does nothing where that is the parameters' own type.
  void refresh_copies() const;
  /// Bytes of these copies.
  int64_t copy_bytes() const;
  /// ids [T] int64 -> x [T, C]; d_x [T, C] is the gradient by its result.
  at::Tensor embed(const at::Tensor& ids) const;
  /// The distinct tokens among some ids, and the place of each id among them. It is made of host
  /// numbers, so that backward need not ask a device how many there are.
  struct Occurrences;
  std::shared_ptr<const Occurrences> occurrences(std::span<const int64_t> ids) const;
  void embed_backward(const Occurrences& ids, const at::Tensor& d_x) const;

  /// The tensors that a phase leaves for its backward, besides its inputs.
  struct PreAttention;
  struct PostAttention;
  /// x [T, C] -> q [T, H, D], k [T, G, D], v [T, G, D]. Where `kept` is null, there is no backward.
  void pre_attention(int layer, const at::Tensor& x, const Rope& rope, at::Tensor* q, at::Tensor* k,
                     at::Tensor* v, Keep keep = {},
                     std::shared_ptr<PreAttention>* kept = nullptr) const;
  /// The gradients by matrices that backward of phases has left for later: what their products
  /// read, which is kept until they are added.
  struct LeftGradients;
  /// The gradients by q, k, v -> that by x [T, C]. `x` and `rope` are those of forward. Where
  /// `left` is not null, gradients by matrices are left in what it points to, which is made if it
  /// is null; otherwise they are added at once.
  at::Tensor pre_attention_backward(int layer, const at::Tensor& x, const Rope& rope,
                                    const PreAttention& kept, const at::Tensor& d_q,
                                    const at::Tensor& d_k, const at::Tensor& d_v,
                                    std::shared_ptr<LeftGradients>* left = nullptr) const;
  /// x [T, C], which was the input of pre_attention, and o [T, H, D] -> the next layer's x [T, C].
  at::Tensor post_attention(int layer, const at::Tensor& x, const at::Tensor& o, Keep keep = {},
                            std::shared_ptr<PostAttention>* kept = nullptr) const;
  /// Returns the same as post_attention() leaves under Keep::kProducts, but computes no result.
  std::shared_ptr<PostAttention> post_attention_again(int layer, const at::Tensor& x,
                                                      const at::Tensor& o) const;
  /// The gradient by the result -> those by x, which this phase adds, and by `o`, that of forward.
  /// Frees what was kept while it goes. `left` as in pre_attention_backward(); whoever passes it
  /// must not write to `d_y` or the first result afterwards, which are among what is kept.
  std::pair<at::Tensor, at::Tensor> post_attention_backward(
      int layer, const at::Tensor& o, PostAttention& kept, at::Tensor d_y,
      std::shared_ptr<LeftGradients>* left = nullptr) const;
  /// Adds what was left, in the order in which it was left, and frees it.
  void add_left(LeftGradients& left) const;
  /// x [T, C] of the last layer -> logits [T, V] in the main params' type.
  at::Tensor logits(const at::Tensor& x) const;
  /// x [T, C] of the last layer, targets [T] int64 (-100: no target) -> the sum of the cross
  /// entropy over the targets of each chunk of `chunk_tokens` rows, in nats, where the model lies.
  /// Logits exist for a chunk at a time. Where `d_x` is not null, backward is done for each chunk
  /// at once: `d_x` becomes the gradient of `scale` * loss by x, and the parameters' .grad are
  /// added to. Where `losses` is not null, it becomes the cross entropy of each row [T], 0 without
  /// a target.
  at::Tensor chunk_losses(const at::Tensor& x, const at::Tensor& targets, int64_t chunk_tokens,
                          double scale = 1, at::Tensor* d_x = nullptr,
                          at::Tensor* losses = nullptr) const;

  /// The lines of the weight table, and the weights in the same order. The tensors share memory
  /// with the model.
  const std::vector<Weight>& weights() const;
  const std::vector<at::Tensor>& parameters() const;
  /// [bytes] All parameters, at the places of parameter_offsets().
  const at::Tensor& storage() const;

 private:
  friend class TensorPhases;  // model/tensor_phases.h
  struct State;
  static void set_frequencies(State& state);
  std::unique_ptr<State> state_;
};

}  // namespace distca
