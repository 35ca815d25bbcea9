#pragma once
// The books of program_walk.h: the bytes that a rank holds, and those of one row of a layer. Plain
// values, any thread.

#include <algorithm>
#include <vector>

#include "distca/forecast/memory.h"
#include "distca/forecast/memory_peak.h"
#include "distca/forecast/memory_walk.h"
#include "distca/model/llama_config.h"
#include "distca/program/program.h"

namespace distca {

/// The bytes that a rank holds now, and the most that it has held.
class Ledger {
 public:
  /// From the next begin() on, the bytes of each operation are also noted there.
  void note(std::vector<HeldInOp>* held) { held_ = held; }
  /// All that follows belongs to this operation, which is borrowed; null is every operation.
  void begin(const Op* operation, bool lands = false) {
    operation_ = operation;
    if (held_ == nullptr) return;
    const double now = now_.total();
    held_->push_back({.op = operation, .lands = lands, .most = now, .after = now});
  }
  void take(MemoryPart part, double bytes) {
    now_.at(part) += bytes;
    const double total = now_.total();
    if (total > most_) {
      most_ = total;
      peak_ = now_;
      peak_operation_ = operation_;
    }
    if (held_ != nullptr) {
      held_->back().most = std::max(held_->back().most, total);
      held_->back().after = total;
    }
    const double passing = now_.of(MemoryPart::kLogits) + now_.of(MemoryPart::kPhase);
    most_passing_ = std::max(most_passing_, passing);
  }
  void give(MemoryPart part, double bytes) {
    now_.at(part) -= bytes;
    if (held_ != nullptr) held_->back().after = now_.total();
  }
  /// Takes what is given back before anything else is taken.
  void pass(MemoryPart part, double bytes) {
    take(part, bytes);
    give(part, bytes);
  }
  PeakMemory peak() const {
    PeakMemory peak = peak_;
    peak.most_passing = most_passing_;
    if (most_ >= 0) peak.where = peak_operation_ ? describe(*peak_operation_) : "every operation";
    return peak;
  }

 private:
  PeakMemory now_, peak_;
  double most_ = -1, most_passing_ = 0;
  const Op* operation_ = nullptr;  // one of millions, so it gets no name before it is asked for
  const Op* peak_operation_ = nullptr;  // that of peak_
  std::vector<HeldInOp>* held_ = nullptr;
};

/// Bytes of what one row (token) has in a layer. Letters as in model/llama.h.
struct RowBytes {
  explicit RowBytes(const LlamaConfig& model)
      : type(static_cast<double>(element_bytes(model.dtype))),
        wide(main_param_bytes(model)),
        hidden(static_cast<double>(model.hidden_size) * type),
        inner(static_cast<double>(model.intermediate_size) * type),
        q(static_cast<double>(model.num_attention_heads * model.head_dim) * type),
        k(static_cast<double>(model.num_key_value_heads * model.head_dim) * type),
        head(static_cast<double>(model.num_attention_heads) * wide),
        normed(model.has_qk_norm() ? q + k +
                                         static_cast<double>(model.num_attention_heads +
                                                             model.num_key_value_heads) *
                                             wide
                                   : 0),
        rope(2 * static_cast<double>(model.head_dim) * wide) {}

  double type, wide;  // an element of phases, and one of norms, sums, logits
  double hidden;      // C
  double inner;       // the MLP's
  double q, k;        // also O; also V
  double head;        // LSE or delta
  double normed;      // inputs and factors that a norm of Q and K keeps
  double rope;
  double qkv() const { return q + 2 * k; }
  bool converts() const { return type != wide; }
};

}  // namespace distca
