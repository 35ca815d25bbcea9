#pragma once
// The phases of a Llama whose matrices are divided among the ranks of a server: tensor and sequence
// parallelism, as Megatron-LM has them. Each rank owns some rows of the residual stream, as
// TensorPlace::part() divides the tokens, and computes with its part of each matrix for the rows of
// all. In between somebody else gathers rows, and sums the ranks' parts of rows for their owners:
//
//     const TensorPhases phases(model);  // a Llama whose Stage has this rank's TensorPlace
//     at::Tensor x = sum(phases.embed_part(ids)), factors, q, k, v;  // own rows
//     const at::Tensor h = gather(phases.norm(layer, Branch::kAttention, x, &factors));
//     phases.projections(layer, h, *rope, &q, &k, &v);
//     phases.out_projection(layer, o, parts);  // o: core attention of own heads
//     const at::Tensor m = x + sum(parts);
//     phases.mlp(layer, gather(phases.norm(layer, Branch::kMlp, m, &factors)), {}, nullptr, parts);
//     x = m + sum(parts);
//
// Letters: R tokens of the server, r of them this rank's rows (perhaps none), T ranks, t this
// rank's index, C hidden_size, H and G the query and key/value heads that this rank holds, D
// head_dim, I the inner features that it holds, V tokens of the whole vocabulary.
//
// Rows are in the compute type. Gathered rows may be a part of wider rows. Of what was gathered,
// nothing is kept: what gradients that are left for later need is copied. Backward adds gradients
// to the parameters' .grad. The gradient of a weight that several ranks hold (Weight::holders) is
// on each of them that by its own rows or heads; somebody else adds them up. Thread rule: as Llama,
// one thread a model.

#include <cstdint>
#include <memory>
#include <span>

#include "distca/model/llama.h"

namespace distca {

/// The messages that the ranks of a server send each other for the loss. All ranks call the same
/// functions in the same order, with the same counts. A result must stay as it is until the next
/// call of the function that made it.
class TensorLoss {
 public:
  virtual ~TensorLoss() = default;
  /// rows [counts[t], C] of each rank -> those of all ranks, in rank order. counts: [T].
  virtual at::Tensor gather_rows(const at::Tensor& rows, std::span<const int64_t> counts) = 0;
  /// statistics [n, 3] of each rank, contiguous, in the main params' type -> [T, n, 3].
  virtual at::Tensor gather_statistics(const at::Tensor& statistics) = 0;
  /// parts [n, C] of the rows of all ranks, in rank order -> this rank's rows [counts[t], C] of the
  /// sum over ranks, which is made in rank order in the main params' type and rounded once. The
  /// caller may write to the result.
  virtual at::Tensor sum_rows(const at::Tensor& parts, std::span<const int64_t> counts) = 0;
};

/// The two parts of a layer that add to the residual stream, each behind a norm.
enum class Branch : uint8_t { kAttention, kMlp };

/// The phases. Borrows the model.
class TensorPhases {
 public:
  explicit TensorPhases(const Llama& model);

  /// ids [R] int64 -> the rows [R, C] of those tokens that this rank's part of the embedding has.
  /// Other rows are zero, so that the sum over ranks is the embedding.
  at::Tensor embed_part(const at::Tensor& ids) const;
  /// The ids, among some, whose rows this rank's part of the embedding has.
  struct OwnIds;
  std::shared_ptr<const OwnIds> own_ids(std::span<const int64_t> ids) const;
  /// Adds the gradient by the embedding of that by all rows: d_x [R, C], gathered.
  void embed_backward(const OwnIds& ids, const at::Tensor& d_x) const;

  /// x [r, C], the residual stream in front of a branch -> its norm [r, C], which is then gathered
  /// to h. `factors` becomes [r, 1], which is kept for backward.
  at::Tensor norm(int layer, Branch branch, const at::Tensor& x, at::Tensor* factors) const;
  /// Computes the result of norm() again.
  at::Tensor norm_again(int layer, Branch branch, const at::Tensor& x,
                        const at::Tensor& factors) const;
  /// The gradient by h, summed over ranks [r, C] -> that by x through the norm, to which the caller
  /// adds the residual's. The result may take the place of `d_h`. Adds the gradient by the norm's
  /// weight of these rows.
  at::Tensor norm_backward(int layer, Branch branch, const at::Tensor& x, const at::Tensor& factors,
                           const at::Tensor& d_h) const;

  /// h [R, C] -> q [R, H, D], k [R, G, D], v [R, G, D] of own heads. `rope` is that of all R rows.
  /// Where `kept` is null, there is no backward.
  void projections(int layer, const at::Tensor& h, const Llama::Rope& rope, at::Tensor* q,
                   at::Tensor* k, at::Tensor* v,
                   std::shared_ptr<Llama::PreAttention>* kept = nullptr) const;
  /// Returns the same as projections() leaves, for backward of heads that servers have got again.
  std::shared_ptr<Llama::PreAttention> projections_again(int layer, const at::Tensor& h,
                                                         const Llama::Rope& rope) const;
  /// The gradients by q, k and v -> this rank's part of that by h, written to d_h_part [R, C]. `h`
  /// is that of forward, gathered again. `left` is as in Llama::pre_attention_backward(), which
  /// keeps `d_v` itself on a CPU, and what is left goes to Llama::add_left().
  void projections_backward(int layer, const Llama::PreAttention& kept, const Llama::Rope& rope,
                            const at::Tensor& d_q, const at::Tensor& d_k, const at::Tensor& d_v,
                            const at::Tensor& h, std::shared_ptr<Llama::LeftGradients>* left,
                            at::Tensor d_h_part) const;

  /// o [R, H, D] of own heads -> this rank's part of what attention adds to the residual stream,
  /// written to y_part [R, C].
  void out_projection(int layer, const at::Tensor& o, at::Tensor y_part) const;
  /// d_y [R, C], gathered -> the gradient by o [R, H, D], that of forward. Where gradients are
  /// left, `o` itself is kept, and must not be written to until they are added.
  at::Tensor out_projection_backward(int layer, const at::Tensor& o, const at::Tensor& d_y,
                                     std::shared_ptr<Llama::LeftGradients>* left) const;

  /// h [R, C] -> this rank's part of what the MLP adds to the residual stream, written to y_part
  /// [R, C]. Where `kept` is null, there is no backward.
  void mlp(int layer, const at::Tensor& h, Keep keep, std::shared_ptr<Llama::PostAttention>* kept,
           at::Tensor y_part) const;
  /// Returns the same as mlp() leaves under Keep::kProducts, but computes no result.
  std::shared_ptr<Llama::PostAttention> mlp_again(int layer, const at::Tensor& h) const;
  /// d_y [R, C] and h [R, C], both gathered -> this rank's part of the gradient by h, written to
  /// d_h_part [R, C]. Frees what was kept while it goes. `left` as in projections_backward().
  void mlp_backward(int layer, Llama::PostAttention& kept, const at::Tensor& d_y,
                    const at::Tensor& h, std::shared_ptr<Llama::LeftGradients>* left,
                    at::Tensor d_h_part) const;

  /// x [r, C] of the last layer and the targets [R] int64 of all tokens (-100: no target) -> on
  /// every rank the same sums of the cross entropy over the targets of each chunk, in nats, where
  /// the model lies: they are the whole server's, so one rank alone must report them. A chunk takes
  /// the same number of rows of each rank, as long as it has any, and at most `chunk_tokens` of all
  /// ranks, or one of each. Logits exist for a chunk at a time. `scale`, `d_x` [r, C] and the
  /// gradients are as in Llama::chunk_losses(). Where `losses` is not null, it becomes on every
  /// rank the cross entropy of all tokens [R] in their order, 0 without a target.
  at::Tensor chunk_losses(TensorLoss& messages, const at::Tensor& x, const at::Tensor& targets,
                          int64_t chunk_tokens, double scale = 1, at::Tensor* d_x = nullptr,
                          at::Tensor* losses = nullptr) const;

 private:
  const at::Tensor& norm_weight(int layer, Branch branch) const;
  at::Tensor chunk_loss(TensorLoss& messages, const at::Tensor& x, const at::Tensor& targets,
                        std::span<const int64_t> counts, double scale, const at::Tensor& d_x) const;

  const Llama& model_;
  const Llama::State& state_;
};

}  // namespace distca
