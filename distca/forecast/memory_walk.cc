#include "distca/forecast/memory_walk.h"

#include <algorithm>
#include <memory>

#include "distca/base/error.h"
#include "distca/forecast/program_walk.h"
#include "distca/forecast/tensor_walk.h"

namespace distca {
namespace {

/// Plays the phases of NanoPhases, which nobody divides. The names of its methods are those of that
/// class; what each takes and gives back stands in their order.
class WholeWalk final : public ProgramWalk {
 public:
  using ProgramWalk::ProgramWalk;

 private:
  void play(const Op& op, Nano& nano) override {
    const bool forward = op.pass == Pass::kForward;
    switch (op.kind) {
      case OpKind::kEmbed:
        return forward ? begin(nano) : take_gradient(nano);
      case OpKind::kPreAttention:
        return forward ? pre_attention(nano) : pre_attention_backward(nano, op.leaves_weights);
      case OpKind::kPostAttention:
        return forward ? post_attention(nano) : post_attention_backward(nano, op.leaves_weights);
      case OpKind::kWeightGradient:
        return weight_gradient(nano);
      case OpKind::kLoss:
        return forward ? loss(nano) : void();
      case OpKind::kP2p:
        return play_p2p(op, nano);
      default:
        DISTCA_CHECK(false, "no phase: {}", describe(op));
    }
  }
  void land_sum(const Op& op, Nano&) override {
    DISTCA_CHECK(false, "{} of phases that nobody divides", describe(op));
  }

  /// x -> Q, K, V of some rows, which go to `part`.
  void pre_attention_of(double rows, bool keeps, MemoryPart part) {
    ledger_.take(part, rows * (row_.wide + (keeps ? row_.hidden : 0)));
    if (!keeps) ledger_.pass(kPhase, rows * (row_.hidden + row_.qkv()));
    projections_of(rows, part);
  }

  void pre_attention(const Nano& nano) {
    if (full()) {  // nothing but Q, K, V stays, of no graph
      pre_attention_of(chunk_of(nano), false, kPhase);
      ledger_.give(kPhase, chunk_of(nano) * (row_.wide + row_.qkv() + row_.normed));
      ledger_.take(kActivations, nano.tokens * row_.qkv());
    } else {
      pre_attention_of(nano.tokens, keeps_products(), kActivations);
    }
    set_qkv(nano);
  }

  /// Bytes that post-attention keeps of a row, without its inputs and its output.
  double post_kept(bool keeps) const {
    return row_.hidden + row_.wide + 2 * row_.inner + (keeps ? row_.hidden + row_.inner : 0);
  }

  void post_attention(Nano& nano) {
    end_attention(nano);
    if (full()) {
      const double rows = chunk_of(nano);
      ledger_.take(kActivations, nano.tokens * row_.hidden);  // y
      ledger_.pass(kPhase, rows * (post_kept(false) + row_.inner + row_.hidden));
      if (!nano.keys_travel_again) ledger_.give(kActivations, nano.tokens * row_.qkv());
      return;
    }
    const bool keeps = keeps_products();
    ledger_.take(kActivations, nano.tokens * post_kept(keeps));
    if (!keeps) ledger_.pass(kPhase, nano.tokens * (row_.inner + row_.hidden));
    ledger_.take(kActivations, nano.tokens * row_.hidden);  // y
    ledger_.pass(kPhase, nano.tokens * row_.hidden);        // without the residual
  }

  void loss(const Nano& nano) {
    ledger_.take(kActivations, nano.tokens * row_.hidden);  // the gradient
    const double rows = std::min(nano.tokens, loss_rows_);
    const double logits = rows * static_cast<double>(model_.vocab_size);
    const double head = matrix(model_.vocab_size, model_.hidden_size);
    const double norm = rows * (row_.hidden + row_.wide);  // the head's input, and factors
    ledger_.take(kPhase, norm);
    // Forward: logits and log-probabilities; backward: log-probabilities, the gradient by them, and
    // that by the logits.
    ledger_.pass(kLogits, logits * (row_.converts() ? row_.type + 2 * row_.wide : 2 * row_.wide));
    ledger_.pass(kLogits, 3 * logits * row_.wide);
    ledger_.take(kLogits, logits * row_.type);
    add_gradient(head);
    ledger_.give(kPhase, rows * row_.hidden);  // the head's input
    ledger_.take(kPhase, rows * row_.hidden);  // the gradient by it, which becomes that by x
    ledger_.pass(kPhase, norm_weight_gradients(rows));
    ledger_.give(kLogits, logits * row_.type);
    ledger_.give(kPhase, norm);
    ledger_.give(kActivations, nano.tokens * row_.hidden);  // x
  }

  /// Backward of what post-attention has kept of some rows in `part`. Leaves the gradients by x and
  /// by O in kPhase. Where weight gradients are left, what their products read stays.
  void post_rows_backward(double rows, bool keeps, MemoryPart part, bool leaves) {
    if (leaves) return post_rows_leave(rows, keeps, part);
    inner_backward(rows, keeps, part);
    // gate and up of the norm, whose gradient by its input takes the place of that by its output
    const double again = keeps ? 0 : rows * row_.hidden;
    ledger_.take(kPhase, again);
    add_gradient(mlp_matrix());
    ledger_.give(kPhase, again);
    if (keeps) ledger_.give(part, rows * row_.hidden);
    ledger_.take(kPhase, rows * row_.hidden);
    ledger_.pass(kPhase, norm_weight_gradients(rows));
    ledger_.give(kPhase, rows * 2 * row_.inner);
    ledger_.give(part, rows * (row_.wide + row_.hidden));
    // The residual is added to the gradient by x.
    add_gradient(q_matrix());
    ledger_.take(kPhase, rows * row_.q);
  }
  void post_rows_leave(double rows, bool keeps, MemoryPart part) {
    inner_leave(rows, keeps, part);
    const double hidden = rows * row_.hidden;
    if (keeps && part != kActivations) ledger_.give(part, hidden);  // it stays with what is left
    if (!keeps || part != kActivations) ledger_.take(kActivations, hidden);
    ledger_.take(kPhase, hidden);
    ledger_.pass(kPhase, norm_weight_gradients(rows));
    ledger_.give(part, rows * (row_.wide + row_.hidden));
    ledger_.take(kPhase, rows * row_.q);
  }

  /// With the forward of these rows before it, but for its last product.
  void post_chunk_backward(double rows, bool leaves) {
    ledger_.take(kPhase, rows * post_kept(true));
    post_rows_backward(rows, true, kPhase, leaves);
    ledger_.give(kPhase, rows * (row_.hidden + row_.q));
    if (leaves) ledger_.take(kActivations, rows * row_.hidden);  // the gradient by O's projection
  }

  void post_attention_backward(const Nano& nano, bool leaves) {
    const double d_x_d_o = nano.tokens * (row_.hidden + row_.q);
    if (full()) {
      const double first = chunk_of(nano);
      post_chunk_backward(first, leaves);
      // Gradients of all tokens, once a chunk is done.
      ledger_.take(kActivations, has_chunks(nano) || !leaves ? d_x_d_o : nano.tokens * row_.q);
      for (double done = first; has_chunks(nano) && done < nano.tokens; done += first) {
        post_chunk_backward(std::min(first, nano.tokens - done), leaves);
        if (!leaves) break;  // all others take as much
      }
      if (!leaves) ledger_.give(kActivations, nano.tokens * row_.hidden);  // the gradient by y
      if (!nano.keys_travel_again) set_qkv_again(nano);
    } else {
      post_rows_backward(nano.tokens, keeps_products(), kActivations, leaves);
      ledger_.give(kPhase, d_x_d_o);
      ledger_.take(kActivations, d_x_d_o);
      if (!leaves) ledger_.give(kActivations, nano.tokens * row_.hidden);  // the gradient by y
    }
    set_d_o(nano);
  }

  /// Q, K and V of a chunk go into those of all tokens; the rest stays for the phase's backward.
  void set_qkv_again(const Nano& nano) {
    const double rows = chunk_of(nano);
    pre_attention_of(rows, false, kPhase);
    ledger_.give(kPhase, rows * (row_.wide + row_.qkv() + row_.normed));
    ledger_.take(kActivations, nano.tokens * (row_.wide + row_.qkv() + row_.normed));
  }

  void pre_attention_backward(Nano& nano, bool leaves) {
    take_gradients(nano, leaves);
    const double rows = full() ? chunk_of(nano) : nano.tokens;
    const bool again = full() && nano.keys_travel_again, keeps = keeps_products();
    if (again) {  // Q, K and V themselves are not needed
      pre_attention_of(rows, false, kPhase);
      ledger_.give(kPhase, rows * row_.qkv());
    }
    const double rotated = rows * (row_.q + row_.k);
    if (leaves) return pre_attention_leave(nano, rows, keeps, again);
    ledger_.take(kPhase, rotated + (keeps ? 0 : rows * row_.hidden));
    add_gradient(std::max(q_matrix(), k_matrix()));
    if (!keeps) ledger_.give(kPhase, rows * row_.hidden);
    ledger_.take(kPhase, rows * row_.hidden);  // the gradient by the norm's output, then by x
    ledger_.pass(kPhase, norm_weight_gradients(rows));
    ledger_.give(kPhase, rotated + rows * row_.hidden);
    const double of_norms = row_.normed + row_.wide;
    ledger_.give(again ? kPhase : kActivations,
                 again ? rows * of_norms : nano.tokens * (of_norms + (keeps ? row_.hidden : 0)));
    ledger_.give(kActivations, nano.tokens * row_.hidden);  // x
    ledger_.give(kPhase, nano.tokens * row_.qkv());
  }

  /// The rest of it where weight gradients are left: the rows that were read and the gradients by
  /// Q, K and V stay, and of the input's gradient also the part that post-attention has made.
  void pre_attention_leave(const Nano& nano, double rows, bool keeps, bool again) {
    const double tokens = nano.tokens;
    ledger_.take(kActivations, tokens * (row_.q + row_.k + (keeps ? 0 : row_.hidden)));
    ledger_.take(kPhase, rows * row_.hidden);
    ledger_.pass(kPhase, norm_weight_gradients(rows));
    if (!has_chunks(nano) || !full()) ledger_.take(kActivations, tokens * row_.hidden);
    ledger_.give(kPhase, rows * row_.hidden);
    ledger_.give(again ? kPhase : kActivations,
                 (again ? rows : tokens) * (row_.normed + row_.wide));
    ledger_.give(kActivations, tokens * row_.hidden);  // x
    ledger_.give(kPhase, tokens * row_.qkv());
    ledger_.take(kActivations, tokens * row_.k);  // the gradient by V
  }
};

}  // namespace

PeakMemory peak_of_step(const Config& config, const Program& program, const MemoryParts& standing,
                        int64_t multiprocessors, std::vector<HeldInOp>* held) {
  const std::unique_ptr<ProgramWalk> walk =
      program.stage.tensor.size > 1 ? tensor_walk(config, program, multiprocessors)
                                    : std::make_unique<WholeWalk>(config, program, multiprocessors);
  walk->note(held);
  walk->stand(standing);
  if (config.train.steps > 0) walk->play_phases();
  return walk->peak();
}

}  // namespace distca
