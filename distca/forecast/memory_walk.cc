#include "distca/forecast/memory_walk.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "distca/base/error.h"
#include "distca/base/integers.h"
#include "distca/forecast/memory_ledger.h"
#include "distca/forecast/step_program.h"
#include "distca/runtime/attention_memory.h"

namespace distca {
namespace {

using enum MemoryPart;

/// Plays one rank's program on paper. The names of its methods are those of NanoPhases and
/// StepAttention; what each takes and gives back stands in their order.
class Walk {
 public:
  Walk(const Config& config, const Program& program, int64_t multiprocessors)
      : model_(config.model),
        program_(program),
        of_attention_(attention_memory(config, program, multiprocessors)),
        row_(config.model),
        recompute_(config.train.recompute),
        chunk_rows_(static_cast<double>(step_options(config).chunk_rows)),
        loss_rows_(static_cast<double>(step_options(config).loss_rows(config.model))),
        landed_(program.ops.size()) {
    for (const Op& op : program.ops) {
      if (op.nano_batch < 0) continue;
      if (static_cast<size_t>(op.nano_batch) >= nanos_.size()) nanos_.resize(op.nano_batch + 1);
      Nano& nano = nanos_[op.nano_batch];
      if (op.kind == OpKind::kCoreAttention)
        nano.tokens = static_cast<double>(program.exchanges[op.exchange]->rows.local_tokens);
      if (op.kind == OpKind::kRedispatch) nano.keys_travel_again = true;
    }
  }

  void stand(const MemoryParts& standing) {
    ledger_.begin("every operation");
    for (const MemoryPart part : {kWeights, kGradients, kCopies, kState, kCheckpoint})
      ledger_.take(part, standing.of(part));
  }

  /// In the order of the executor, which lands p2p messages when they are first waited for.
  void play_phases() {
    for (const Nano& nano : nanos_) ledger_.take(kActivations, nano.tokens * kIdBytes);
    for (const Op& op : program_.ops) {
      for (const int32_t dep : op.wait_for) land(dep);
      // Gradients are added up and weights updated where they are.
      if (is_of_weights(op.kind)) continue;
      if (op.stream == Stream::kComm && op.kind != OpKind::kP2p) continue;
      ledger_.begin(describe(op));
      if (op.kind == OpKind::kCoreAttention) {
        core_attention(op);
      } else {
        play(op, nanos_[op.nano_batch]);
      }
    }
  }

  PeakMemory peak() const { return ledger_.peak(); }

 private:
  static constexpr double kIdBytes = 3 * 8;  // a token, its target and its position

  struct Nano {
    double tokens = 0;
    bool keys_travel_again = false;
    double partials = 0;    // O and LSE of tasks with part of the keys, until they are merged
    bool has_sums = false;  // dQ, dK, dV of the layer under way
  };
  double chunk_of(const Nano& nano) const { return std::min(nano.tokens, chunk_rows_); }
  bool has_chunks(const Nano& nano) const { return nano.tokens > chunk_rows_; }

  void play(const Op& op, Nano& nano) {
    const bool forward = op.pass == Pass::kForward;
    switch (op.kind) {
      case OpKind::kEmbed:
        return forward ? embed(nano) : embed_backward(nano);
      case OpKind::kPreAttention:
        return forward ? pre_attention(nano) : pre_attention_backward(nano, op.leaves_weights);
      case OpKind::kPostAttention:
        return forward ? post_attention(nano) : post_attention_backward(nano, op.leaves_weights);
      case OpKind::kWeightGradient:
        return weight_gradient(nano);
      case OpKind::kLoss:
        return forward ? loss(nano) : void();
      case OpKind::kP2p:
        if (op.is_receive) return;  // until it is landed
        return forward ? take_output(nano) : take_gradient(nano);
      default:
        DISTCA_CHECK(false, "no phase: {}", describe(op));
    }
  }

  void land(int32_t index) {
    const Op& op = program_.ops[index];
    if (op.kind != OpKind::kP2p || !op.is_receive || landed_[index]) return;
    landed_[index] = true;
    ledger_.begin(describe(op));
    const Nano& nano = nanos_[op.nano_batch];
    op.pass == Pass::kForward ? begin(nano) : begin_backward(nano);
  }

  bool full() const { return recompute_ == Recompute::kFull; }
  /// Returns true if operators keep what their matrix products read.
  bool keeps_products() const { return recompute_ == Recompute::kNone; }
  double matrix(int64_t rows, int64_t columns) const {
    return static_cast<double>(rows) * static_cast<double>(columns) * row_.type;
  }
  double mlp_matrix() const { return matrix(model_.intermediate_size, model_.hidden_size); }
  double q_matrix() const {
    return matrix(model_.num_attention_heads * model_.head_dim, model_.hidden_size);
  }
  double k_matrix() const {
    return matrix(model_.num_key_value_heads * model_.head_dim, model_.hidden_size);
  }

  /// The gradient by a matrix, which is added to .grad at once; in its type, where that is another.
  void add_gradient(double bytes, bool leaves = false) {
    if (!leaves) ledger_.pass(kPhase, bytes * (row_.converts() ? 1 + row_.wide / row_.type : 1));
  }

  void embed(const Nano& nano) { begin(nano); }
  /// With the rows that the first layer reads, the stage makes RoPE of their positions.
  void begin(const Nano& nano) {
    ledger_.take(kActivations, nano.tokens * (row_.hidden + row_.rope));
  }
  void take_output(const Nano& nano) { ledger_.give(kActivations, nano.tokens * row_.hidden); }
  void begin_backward(const Nano& nano) { ledger_.take(kActivations, nano.tokens * row_.hidden); }
  /// Nothing of the nano-batch stays.
  void take_gradient(const Nano& nano) {
    ledger_.give(kActivations, nano.tokens * (row_.hidden + row_.rope + kIdBytes));
  }

  /// x -> Q, K, V of some rows, which go to `part`; RoPE makes Q and K anew.
  void pre_attention_of(double rows, bool keeps, MemoryPart part) {
    ledger_.take(part, rows * (row_.wide + (keeps ? row_.hidden : 0)));
    if (!keeps) ledger_.pass(kPhase, rows * (row_.hidden + row_.qkv()));
    ledger_.take(part, rows * row_.qkv());
    if (row_.normed > 0) return ledger_.take(part, rows * row_.normed);
    ledger_.pass(kPhase, rows * (row_.q + row_.k));
  }

  void pre_attention(const Nano& nano) {
    if (full()) {  // nothing but Q, K, V stays, of no graph
      pre_attention_of(chunk_of(nano), false, kPhase);
      ledger_.give(kPhase, chunk_of(nano) * (row_.wide + row_.qkv() + row_.normed));
      ledger_.take(kActivations, nano.tokens * row_.qkv());
    } else {
      pre_attention_of(nano.tokens, keeps_products(), kActivations);
    }
    ledger_.take(kActivations, nano.tokens * (row_.q + row_.head));  // O, LSE
  }

  /// [exchange] memory of ATen's operators on a CUDA device; empty on the CPU, whose kernel keeps
  /// its scratch.
  static std::vector<AttentionMemory> attention_memory(const Config& config, const Program& program,
                                                       int64_t multiprocessors) {
    std::vector<AttentionMemory> memory;
    if (!config.on_cuda() || config.train.steps == 0) return memory;
    const KernelRequest request = kernel_request(config);
    for (const auto& exchange : program.exchanges) {
      memory.push_back(cuda_attention_memory(
          *exchange, request.shape, request.type,
          {.multiprocessors = multiprocessors, .deterministic = config.train.deterministic}));
    }
    return memory;
  }

  void core_attention(const Op& op) {
    const auto operators = static_cast<double>(
        of_attention_.empty() ? 0
                              : of_attention_[op.exchange][static_cast<size_t>(op.tasks)]
                                             [static_cast<size_t>(op.pass)]);
    const AttentionExchange& exchange = *program_.exchanges[op.exchange];
    double partials = 0;
    if (op.pass == Pass::kForward) {
      for (const int32_t i : exchange.tasks_of(op.tasks)) {
        const ServerTask& task = exchange.rows.tasks[i];
        if (!task.partial) continue;
        partials +=
            static_cast<double>(task.q.tokens) * (row_.q / row_.type * row_.wide + row_.head);
      }
    }
    if (op.nano_batch < 0) return ledger_.pass(kPhase, partials + operators);
    Nano& nano = nanos_[op.nano_batch];
    ledger_.take(kPhase, partials);
    nano.partials += partials;
    if (op.pass == Pass::kBackward && !nano.has_sums) {
      nano.has_sums = true;
      ledger_.take(kActivations, nano.tokens * sums());
    }
    ledger_.pass(kPhase, operators);
  }
  /// dQ, dK, dV in the type in which they are summed.
  double sums() const { return row_.qkv() / row_.type * row_.wide; }

  /// Bytes that post-attention keeps of a row, without its inputs and its output.
  double post_kept(bool keeps) const {
    return row_.hidden + row_.wide + 2 * row_.inner + (keeps ? row_.hidden + row_.inner : 0);
  }

  void post_attention(Nano& nano) {
    ledger_.give(kPhase, nano.partials);
    nano.partials = 0;
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
    // down(silu(gate) * up): the gradient by gate takes the place of the product
    if (!keeps) ledger_.take(kPhase, rows * row_.inner);
    add_gradient(mlp_matrix());
    ledger_.take(kPhase, rows * row_.inner);
    ledger_.give(part, rows * ((keeps ? 3 : 2) * row_.inner));
    if (keeps) ledger_.take(kPhase, rows * row_.inner);
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
    // The product, or the product computed again, and the gradients by gate and by up.
    const double inner = rows * row_.inner, hidden = rows * row_.hidden;
    if (!keeps) ledger_.take(kActivations, inner);
    ledger_.take(kActivations, 2 * inner);
    ledger_.give(part, 2 * inner);
    if (!keeps) ledger_.take(kActivations, hidden);
    if (keeps && part != kActivations) {  // that of a chunk stays with what is left
      ledger_.give(part, inner + hidden);
      ledger_.take(kActivations, inner + hidden);
    }
    ledger_.take(kPhase, hidden);
    ledger_.pass(kPhase, norm_weight_gradients(rows));
    ledger_.give(part, rows * (row_.wide + row_.hidden));
    ledger_.take(kPhase, rows * row_.q);
  }
  /// A row for each block of rows.
  double norm_weight_gradients(double rows) const {
    constexpr double kBlockElements = 1 << 15;
    const auto hidden = static_cast<double>(model_.hidden_size);
    return rows / std::max(1.0, kBlockElements / hidden) * hidden * row_.wide;
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
    // delta
    const double wide = nano.tokens * row_.q / row_.type * row_.wide;
    ledger_.pass(kPhase, row_.converts() ? 3 * wide : wide);
    ledger_.take(kActivations, nano.tokens * row_.head);
  }

  /// Q, K and V of a chunk go into those of all tokens; the rest stays for the phase's backward.
  void set_qkv_again(const Nano& nano) {
    const double rows = chunk_of(nano);
    pre_attention_of(rows, false, kPhase);
    ledger_.give(kPhase, rows * (row_.wide + row_.qkv() + row_.normed));
    ledger_.take(kActivations, nano.tokens * (row_.wide + row_.qkv() + row_.normed));
  }

  void pre_attention_backward(Nano& nano, bool leaves) {
    nano.has_sums = false;
    // Phases take the sums in their own type: in new tensors if the sums have another type.
    const double gradients = nano.tokens * row_.qkv();
    if (row_.converts()) ledger_.take(kPhase, gradients);
    // O stays where it is left for its projection.
    ledger_.give(kActivations, nano.tokens * (sums() + (leaves ? 1 : 2) * row_.q + 2 * row_.head));
    if (!row_.converts()) ledger_.take(kPhase, gradients);
    ledger_.give(kActivations, nano.tokens * row_.qkv());
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
    if (again) {
      ledger_.give(kPhase, rows * (row_.normed + row_.wide));
    } else {
      ledger_.give(kActivations,
                   nano.tokens * (row_.normed + row_.wide + (keeps ? row_.hidden : 0)));
    }
    ledger_.give(kActivations, nano.tokens * row_.hidden);  // x
    ledger_.give(kPhase, gradients);
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
    if (again) {
      ledger_.give(kPhase, rows * (row_.normed + row_.wide));
    } else {
      ledger_.give(kActivations, tokens * (row_.normed + row_.wide));
    }
    ledger_.give(kActivations, tokens * row_.hidden);  // x
    ledger_.give(kPhase, tokens * row_.qkv());
    ledger_.take(kActivations, tokens * row_.k);  // the gradient by V
  }

  /// Frees what was left, product by product; the largest matrix comes first.
  void weight_gradient(const Nano& nano) {
    add_gradient(mlp_matrix());
    ledger_.give(kActivations, nano.tokens * left_bytes());
  }
  /// Bytes of a row that are left of a layer: the gradient by its output, what the MLP's three
  /// products read, the rows of both norms, the gradient by the projection of O, O, the gradients
  /// by Q, K and V.
  double left_bytes() const { return 4 * row_.hidden + 3 * row_.inner + 2 * row_.q + 2 * row_.k; }

  void embed_backward(const Nano& nano) { take_gradient(nano); }

  const LlamaConfig& model_;
  const Program& program_;
  const std::vector<AttentionMemory> of_attention_;
  const RowBytes row_;
  const Recompute recompute_;
  const double chunk_rows_;
  const double loss_rows_;
  std::vector<Nano> nanos_;
  std::vector<bool> landed_;  // [operation] of p2p
  Ledger ledger_;
};

}  // namespace

PeakMemory peak_of_step(const Config& config, const Program& program, const MemoryParts& standing,
                        int64_t multiprocessors) {
  Walk walk(config, program, multiprocessors);
  walk.stand(standing);
  if (config.train.steps > 0) walk.play_phases();
  return walk.peak();
}

}  // namespace distca
