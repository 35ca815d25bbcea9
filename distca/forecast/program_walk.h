#pragma once
// The part of memory_walk.h that does not depend on whether ranks divide the phases of layers: the
// order of operations, core attention, p2p messages, and what both kinds of phases take alike. Its
// two kinds play the phases (memory_walk.cc, tensor_walk.h). Plain values, one thread an object.
//
// Rows. `tokens` are those of a server; its ranks have the rows between matrices of `own` of them
// each (TensorPlace::part), which are all tokens where nobody divides them. The model's sizes are
// those of one rank.

#include <algorithm>
#include <vector>

#include "distca/config/config.h"
#include "distca/forecast/memory_ledger.h"
#include "distca/program/program.h"
#include "distca/runtime/attention_memory.h"

namespace distca {

class ProgramWalk {
 public:
  /// Borrows both.
  ProgramWalk(const Config& config, const Program& program, int64_t multiprocessors);
  virtual ~ProgramWalk() = default;
  ProgramWalk(const ProgramWalk&) = delete;
  ProgramWalk& operator=(const ProgramWalk&) = delete;

  /// Notes there what each operation holds; null is nowhere. Comes before stand().
  void note(std::vector<HeldInOp>* held) { ledger_.note(held); }
  void stand(const MemoryParts& standing);
  /// In the order of the executor, which lands messages when they are first waited for.
  void play_phases();
  PeakMemory peak() const { return ledger_.peak(); }

 protected:
  using enum MemoryPart;

  struct Nano {
    double tokens = 0, own = 0;
    double id_bytes = 0;  // tokens, targets and positions
    bool keys_travel_again = false;
    double partials = 0;    // O and LSE of tasks with part of the keys, until they are merged
    bool has_sums = false;  // dQ, dK, dV of the layer under way
  };

  /// A phase, a kP2p or a message of tensor parallelism where it stands in the list.
  virtual void play(const Op& op, Nano& nano) = 0;
  /// A kSumRows, once it has landed.
  virtual void land_sum(const Op& op, Nano& nano) = 0;

  /// Returns true if nothing that core attention takes stays with the nano-batch: it is another's.
  bool only_serves(const Op& op) const {
    return op.nano_batch < 0 || program_.stage.layers.empty();
  }
  bool full() const { return recompute_ == Recompute::kFull; }
  /// Returns true if operators keep what their matrix products read.
  bool keeps_products() const { return recompute_ == Recompute::kNone; }
  double chunk_of(const Nano& nano) const { return std::min(nano.tokens, chunk_rows_); }
  bool has_chunks(const Nano& nano) const { return nano.tokens > chunk_rows_; }
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
  void add_gradient(double bytes) {
    ledger_.pass(kPhase, bytes * (row_.converts() ? 1 + row_.wide / row_.type : 1));
  }
  /// A row for each block of rows.
  double norm_weight_gradients(double rows) const;

  void play_p2p(const Op& op, Nano& nano);
  /// With the rows that the first layer reads, the stage makes RoPE of all positions.
  void begin(const Nano& nano) {
    ledger_.take(kActivations, nano.own * row_.hidden + nano.tokens * row_.rope);
  }
  /// Nothing of the nano-batch stays.
  void take_gradient(const Nano& nano) {
    ledger_.give(kActivations, nano.own * row_.hidden + nano.tokens * row_.rope + nano.id_bytes);
  }

  /// Normed rows -> their Q, K, V, which go to `part`; RoPE makes Q and K anew.
  void projections_of(double rows, MemoryPart part);
  /// Takes O and LSE, which core attention fills.
  void set_qkv(const Nano& nano) { ledger_.take(kActivations, nano.tokens * (row_.q + row_.head)); }
  /// Once O has come home.
  void end_attention(Nano& nano) {
    ledger_.give(kPhase, nano.partials);
    nano.partials = 0;
  }
  /// delta of dO.
  void set_d_o(const Nano& nano);
  /// Leaves dQ, dK and dV in kPhase, and frees what the layer's attention keeps. O stays where it
  /// is left for its projection.
  void take_gradients(Nano& nano, bool leaves);

  /// down(silu(gate) * up) of some rows, whose gate, up and perhaps product are in `part`. Leaves
  /// the gradients by gate and by up in kPhase.
  void inner_backward(double rows, bool keeps, MemoryPart part);
  /// Likewise where weight gradients are left: the product and these gradients stay.
  void inner_leave(double rows, bool keeps, MemoryPart part);
  /// Frees what was left, product by product; the largest matrix comes first.
  void weight_gradient(const Nano& nano);

  const Program& program_;
  const LlamaConfig model_;
  const RowBytes row_;
  const double loss_rows_;
  std::vector<Nano> nanos_;
  Ledger ledger_;

 private:
  /// [exchange] memory of ATen's operators on a CUDA device; empty on the CPU, whose kernel keeps
  /// its scratch.
  static std::vector<AttentionMemory> attention_memory(const Config& config, const Program& program,
                                                       int64_t multiprocessors);
  void land(int32_t index);
  void core_attention(const Op& op);
  double partial_bytes(const Op& op) const;
  double merge_bytes(const Op& op) const;
  /// dQ, dK, dV in the type in which they are summed.
  double sums() const { return row_.qkv() / row_.type * row_.wide; }
  /// Bytes of a row that are left of a layer: the gradient by its output, what the MLP's three
  /// products read, the rows of both norms, the gradient by the projection of O, O, the gradients
  /// by Q, K and V.
  double left_bytes() const { return 4 * row_.hidden + 3 * row_.inner + 2 * row_.q + 2 * row_.k; }

  const std::vector<AttentionMemory> of_attention_;
  const Recompute recompute_;
  const double chunk_rows_;
  std::vector<bool> landed_;  // [operation] of p2p and kSumRows
};

}  // namespace distca
