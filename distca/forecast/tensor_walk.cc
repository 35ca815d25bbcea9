#include "distca/forecast/tensor_walk.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "distca/base/error.h"

namespace distca {
namespace {

/// The names of its methods are those of the classes that it follows and of model/tensor_phases.h;
/// what each takes and gives back stands in their order.
class TensorWalk final : public ProgramWalk {
 public:
  TensorWalk(const Config& config, const Program& program, int64_t multiprocessors)
      : ProgramWalk(config, program, multiprocessors) {
    if (!program.stage.is_first()) return;
    // Rows and numbers of the tokens that this rank's part of the embedding has.
    for (Nano& nano : nanos_) nano.id_bytes += 2 * 8 * nano.own;
  }

 private:
  void play(const Op& op, Nano& nano) override {
    const bool forward = op.pass == Pass::kForward;
    switch (op.kind) {
      case OpKind::kP2p:
        return play_p2p(op, nano);
      case OpKind::kGatherRows:
        return gather_rows(op, nano);
      case OpKind::kSumRows:
        return;  // until it is landed
      case OpKind::kEmbed:
        return forward ? embed(nano) : take_gradient(nano);
      case OpKind::kAttentionNorm:
      case OpKind::kMlpNorm:
        return forward ? norm(nano) : norm_backward(nano);
      case OpKind::kPreAttention:
        return forward ? pre_attention(nano) : pre_attention_backward(nano, op.leaves_weights);
      case OpKind::kOutProjection:
        return forward ? out_projection(nano) : out_projection_backward(nano, op.leaves_weights);
      case OpKind::kPostAttention:
        return forward ? post_attention(nano) : post_attention_backward(nano, op.leaves_weights);
      case OpKind::kWeightGradient:
        return weight_gradient(nano);
      case OpKind::kLoss:
        return forward ? loss(nano) : void();  // backward is done in forward
      default:
        DISTCA_CHECK(false, "no phase: {}", describe(op));
    }
  }

  /// Rows lie in a buffer once they are packed. Of a layer's input, backward gathers the norm
  /// again.
  void gather_rows(const Op& op, const Nano& nano) {
    const double rows = nano.own * row_.hidden;
    if (op.pass == Pass::kForward) return ledger_.give(kActivations, rows);
    if (op.of_phase != OpKind::kEmbed) ledger_.pass(kPhase, rows);
  }

  void land_sum(const Op& op, Nano& nano) override {
    ordered_sum(nano.own);
    if (op.pass == Pass::kForward && op.of_phase == OpKind::kEmbed) return begin(nano);
    const double rows = nano.own * row_.hidden;
    ledger_.take(kActivations, rows);
    if (op.pass == Pass::kForward) ledger_.pass(kActivations, rows);  // without the residual
  }

  /// The sum of so many rows that all ranks have computed parts of, without its result: in the type
  /// of sums, with a part of another type in it.
  void ordered_sum(double rows) {
    if (row_.converts()) ledger_.pass(kPhase, 2 * rows * row_.hidden / row_.type * row_.wide);
  }

  bool goes_by_chunks(const Nano& nano) const { return full() && has_chunks(nano); }

  /// Calls work(count) for rows that go through a phase together.
  template <typename Work>
  void for_chunks(const Nano& nano, const Work& work) const {
    const double most = full() ? chunk_of(nano) : nano.tokens;
    double done = 0;
    do {
      work(std::min(most, nano.tokens - done));
      done += most;
    } while (done < nano.tokens);
  }

  /// Rows of the embedding, which is in the main params' type, before they go to a buffer.
  void embed(const Nano& nano) {
    constexpr double kPlaces = 2 * 8;  // a token within the vocabulary's part
    const double wide = row_.hidden / row_.type * row_.wide;
    ledger_.pass(kPhase, nano.tokens * (wide + (row_.converts() ? row_.hidden : kPlaces)));
  }

  /// The norm of own rows, until they are packed, and its factors.
  void norm(const Nano& nano) { ledger_.take(kActivations, nano.own * (row_.hidden + row_.wide)); }

  /// Q, K and V of all rows.
  void projections(const Nano& nano, bool keeps) {
    const bool by_chunks = goes_by_chunks(nano);
    const MemoryPart part = by_chunks ? kPhase : kActivations;
    bool is_first = true;
    for_chunks(nano, [&](double rows) {
      projections_of(rows, part);
      if (!keeps) ledger_.give(part, rows * row_.normed);
      if (!by_chunks) return;
      if (std::exchange(is_first, false)) ledger_.take(kActivations, nano.tokens * row_.qkv());
      ledger_.give(kPhase, rows * (row_.qkv() + (keeps ? row_.normed : 0)));
      if (keeps) ledger_.take(kActivations, rows * row_.normed);
    });
  }

  void pre_attention(const Nano& nano) {
    projections(nano, /*keeps=*/!full());
    set_qkv(nano);
  }

  void out_projection(Nano& nano) {
    end_attention(nano);
    if (full() && !nano.keys_travel_again) ledger_.give(kActivations, nano.tokens * row_.qkv());
  }

  void post_attention(const Nano& nano) {
    if (full()) return ledger_.pass(kPhase, chunk_of(nano) * 3 * row_.inner);
    ledger_.take(kActivations, nano.tokens * 3 * row_.inner);
    if (!keeps_products()) ledger_.give(kActivations, nano.tokens * row_.inner);
  }

  /// Plays the first chunk of rows, which takes most.
  void loss(const Nano& nano) {
    ledger_.take(kActivations, nano.own * row_.hidden);  // the gradient
    // Places and targets of all rows, and their losses, in the order of chunks.
    const double in_order = nano.tokens * (2 * 8 + row_.wide);
    ledger_.take(kPhase, in_order);
    const TensorPlace& place = program_.stage.tensor;
    const double ranks = place.size, each = std::max(1.0, std::floor(loss_rows_ / ranks));
    const double own = std::min(nano.own, each), rows = std::min(nano.tokens, ranks * each);
    const int64_t words = place.part(model_.vocab_size).size();
    const double logits = rows * static_cast<double>(words);
    const double norm = own * (row_.hidden + row_.wide), gathered = rows * row_.hidden;
    ledger_.take(kPhase, norm + gathered);
    ledger_.give(kPhase, own * row_.hidden);
    ledger_.take(kLogits, logits * row_.type);
    if (row_.converts()) {
      ledger_.take(kLogits, logits * row_.wide);
      ledger_.give(kLogits, logits * row_.type);
    }
    // The target's column, where it is elsewhere or nowhere; of each rank and of all, the highest
    // logit, the sum of exponentials and the target's logit; the loss and the factor of gradients.
    const double statistics = rows * (8 + 2 + (3 * ranks + 6) * row_.wide);
    ledger_.take(kPhase, statistics);
    if (row_.converts()) {
      ledger_.take(kLogits, logits * row_.type);
      ledger_.give(kLogits, logits * row_.wide);
    }
    add_gradient(matrix(words, model_.hidden_size));
    const double parts = gathered + (ranks - 1) * own * row_.hidden;  // this rank's, and others'
    ledger_.take(kPhase, parts);
    ordered_sum(own);
    ledger_.take(kPhase, own * row_.hidden);
    ledger_.pass(kPhase, norm_weight_gradients(own));
    ledger_.give(kPhase, parts + statistics + norm + gathered + in_order);
    ledger_.give(kLogits, logits * row_.type);
    ledger_.give(kActivations, nano.own * row_.hidden);  // x
  }

  /// Backward of what the MLP has kept of some rows in `part`. Gathered rows that are left are
  /// copied.
  void mlp_rows_backward(double rows, bool keeps, MemoryPart part, bool leaves) {
    if (leaves) {
      ledger_.take(kActivations, rows * row_.hidden);
      inner_leave(rows, keeps, part);
      return ledger_.take(kActivations, rows * row_.hidden);
    }
    inner_backward(rows, keeps, part);
    add_gradient(mlp_matrix());
    ledger_.give(kPhase, rows * 2 * row_.inner);
  }

  void post_attention_backward(const Nano& nano, bool leaves) {
    for_chunks(nano, [&](double rows) {
      if (!full()) return mlp_rows_backward(rows, keeps_products(), kActivations, leaves);
      ledger_.take(kPhase, rows * 3 * row_.inner);
      mlp_rows_backward(rows, true, kPhase, leaves);
    });
  }

  void out_projection_backward(const Nano& nano, bool leaves) {
    const bool by_chunks = goes_by_chunks(nano);
    bool is_first = true;
    for_chunks(nano, [&](double rows) {
      if (leaves) ledger_.take(kActivations, rows * row_.hidden);
      if (!leaves) add_gradient(q_matrix());
      if (by_chunks) ledger_.take(kPhase, rows * row_.q);
      if (std::exchange(is_first, false)) ledger_.take(kActivations, nano.tokens * row_.q);
      if (by_chunks) ledger_.give(kPhase, rows * row_.q);
    });
    if (full() && !nano.keys_travel_again) projections(nano, /*keeps=*/true);
    set_d_o(nano);
  }

  void pre_attention_backward(Nano& nano, bool leaves) {
    take_gradients(nano, leaves);
    const bool again = full() && nano.keys_travel_again;
    const double rotated = row_.q + row_.k;
    for_chunks(nano, [&](double rows) {
      if (again && row_.normed > 0) {  // Q, K and V themselves are not needed
        projections_of(rows, kPhase);
        ledger_.give(kPhase, rows * row_.qkv());
      }
      if (leaves) {
        ledger_.take(kActivations, rows * (rotated + row_.hidden));
      } else {
        ledger_.take(kPhase, rows * rotated);
        add_gradient(std::max(q_matrix(), k_matrix()));
        ledger_.give(kPhase, rows * rotated);
      }
      ledger_.give(again ? kPhase : kActivations, rows * row_.normed);
    });
    ledger_.give(kPhase, nano.tokens * row_.qkv());
    if (leaves) ledger_.take(kActivations, nano.tokens * row_.k);  // the gradient by V
  }

  /// The gradient by the norm's input takes the place of that by its output. Frees what the norm
  /// has kept, and a gradient: the MLP's norm that by the residual, the first one that by the input
  /// of the MLP's.
  void norm_backward(const Nano& nano) {
    ledger_.pass(kPhase, norm_weight_gradients(nano.own));
    ledger_.give(kActivations, nano.own * (2 * row_.hidden + row_.wide));
  }
};

}  // namespace

std::unique_ptr<ProgramWalk> tensor_walk(const Config& config, const Program& program,
                                         int64_t multiprocessors) {
  return std::make_unique<TensorWalk>(config, program, multiprocessors);
}

}  // namespace distca
