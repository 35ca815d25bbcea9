// Phases of the model, and what stages of a pipeline send each other.

#include <algorithm>
#include <utility>

#include "distca/program/program_builder.h"

namespace distca {

void ProgramBuilder::begin_visit(const Visit& visit) {
  const Range& layers = part_.stage.layers;
  if (visit.pass == Pass::kForward) {
    if (part_.stage.is_first() && visit.layers.begin == layers.begin) embed(visit);
  } else if (part_.stage.is_last() && visit.layers.end == layers.end) {
    loss(visit);
  }
}

void ProgramBuilder::end_visit(const Visit& visit) {
  const Range& layers = part_.stage.layers;
  if (visit.pass == Pass::kForward) {
    if (part_.stage.is_last() && visit.layers.end == layers.end) loss(visit);
  } else if (part_.stage.is_first() && visit.layers.begin == layers.begin) {
    embed(visit);
  }
  for (const P2pOp& what : visit.p2p_ops) p2p(visit, what);
}

void ProgramBuilder::start_layer(const Visit& visit, int turn) {
  const int step = layer_step(visit, turn);
  visit.pass == Pass::kForward ? pre_attention(visit, step) : post_attention(visit, step);
}

void ProgramBuilder::end_layer(const Visit& visit, int turn) {
  const int step = layer_step(visit, turn);
  visit.pass == Pass::kForward ? post_attention(visit, step) : pre_attention(visit, step);
}

double ProgramBuilder::linear_flops(const Visit& visit, int64_t weights) const {
  const int64_t tokens = exchanges_[visit.exchange].part->rows.local_tokens;
  const double forward = 2.0 * static_cast<double>(weights) * static_cast<double>(tokens);
  return visit.pass == Pass::kForward || visit.leaves_weights ? forward : 2 * forward;
}

/// Elements of the matrices of a layer's phases.
int64_t ProgramBuilder::pre_attention_weights() const {
  const AttentionShape& shape = request_.model.attention;
  return request_.model.hidden_size * (shape.num_heads * shape.head_dim_qk +
                                       shape.num_kv_heads * (shape.head_dim_qk + shape.head_dim_v));
}
int64_t ProgramBuilder::post_attention_weights() const {
  const AttentionShape& shape = request_.model.attention;
  return request_.model.hidden_size *
         (shape.num_heads * shape.head_dim_v + 3 * request_.model.intermediate_size);
}

/// Appends a phase, on which the next phase of its nano-batch goes on.
void ProgramBuilder::append_phase(Op op, const Visit& visit) {
  const OpKind kind = op.kind;
  const int layer = op.layer;
  Nano& nano = nano_of(visit);
  nano.last = append(std::move(op));
  if (nano.received >= 0) {  // it has landed
    free_activations_[nano.slot].push_back(nano.received);
    nano.received = -1;
  }
  if (visit.pass == Pass::kBackward && !(visit.leaves_weights && layer >= 0))
    phase_done(kind, layer);
}

void ProgramBuilder::embed(const Visit& visit) {
  if (!plays_phases(visit)) return;
  Op op = make_phase(OpKind::kEmbed, visit, -1);
  wait_for(op, last_of(visit));
  append_phase(std::move(op), visit);
}

void ProgramBuilder::pre_attention(const Visit& visit, int step) {
  if (!plays_phases(visit)) return;
  Op op = make_phase(OpKind::kPreAttention, visit, step);
  op.flops = linear_flops(visit, pre_attention_weights());
  op.leaves_weights = visit.leaves_weights;
  const int64_t layer = op.layer - part_.stage.layers.begin;
  if (visit.pass == Pass::kForward) {
    wait_for(op, last_of(visit));
  } else {
    wait_for(op, exchange_of(visit).last_attention);
    wait_for(op, exchange_of(visit).last_combine);
  }
  append_phase(std::move(op), visit);
  Nano& nano = nano_of(visit);
  nano.tokens = exchanges_[visit.exchange].part->rows.local_tokens;
  (visit.pass == Pass::kForward ? nano.forward_pre_attention : nano.backward_pre_attention)[layer] =
      last_of(visit);
}

void ProgramBuilder::post_attention(const Visit& visit, int step) {
  if (!plays_phases(visit)) return;
  Op op = make_phase(OpKind::kPostAttention, visit, step);
  op.flops = linear_flops(visit, post_attention_weights());
  op.leaves_weights = visit.leaves_weights;
  if (visit.pass == Pass::kForward) {
    wait_for(op, exchange_of(visit).last_attention);
    wait_for(op, exchange_of(visit).last_combine);
  } else {
    wait_for(op, last_of(visit));
  }
  append_phase(std::move(op), visit);
}

void ProgramBuilder::weight_gradients(const Visit& visit, int turn) {
  if (!request_.holds_weights) return;
  for (const WeightGradientOp& what : visit.weight_gradients) {
    if (what.turn != turn) continue;
    Nano& nano = nanos_[what.nano_batch];
    Op op = make_op(OpKind::kWeightGradient, Pass::kBackward, what.layer, what.nano_batch);
    op.tick = visit.tick;
    op.flops = 2.0 * static_cast<double>(pre_attention_weights() + post_attention_weights()) *
               static_cast<double>(nano.tokens);
    wait_for(op, nano.backward_pre_attention[what.layer - part_.stage.layers.begin]);
    nano.last_weight_gradient = append(std::move(op));
    phase_done(OpKind::kPostAttention, what.layer);
    phase_done(OpKind::kPreAttention, what.layer);
  }
}

void ProgramBuilder::loss(const Visit& visit) {
  if (!plays_phases(visit)) return;
  Op op = make_phase(OpKind::kLoss, visit, -1);
  // Where it trains, forward does backward's work too: logits are never kept.
  if (visit.pass == Pass::kForward) {
    op.flops = linear_flops(visit, request_.model.hidden_size * request_.model.vocab_size);
    if (trains()) op.flops *= 3;
  }
  wait_for(op, last_of(visit));
  append_phase(std::move(op), visit);
}

void ProgramBuilder::p2p(const Visit& visit, const P2pOp& what) {
  Nano& nano = nanos_[what.nano_batch];
  Op op = make_op(OpKind::kP2p, what.pass, -1, what.nano_batch);
  op.tick = visit.tick;
  op.stream = Stream::kComm;
  op.is_receive = what.is_receive;
  // A boundary has the index of the stage before it. Tags differ by nano-batch, boundary and pass.
  const bool is_next = (what.pass == Pass::kForward) != what.is_receive;
  const int boundary = is_next ? part_.stage.index : part_.stage.index - 1;
  op.tag = last_attention_tag() + 1 +
           2 * static_cast<uint32_t>(what.nano_batch * (part_.stage.count - 1) + boundary) +
           static_cast<uint32_t>(what.pass);
  const MessageList& messages = what.is_receive ? program_.receives(op) : program_.sends(op);
  if (what.is_receive) {
    if (!messages.empty()) {
      std::vector<int32_t>& free = free_activations_[nano.slot];
      if (free.empty()) free.push_back(new_buffer(BufferRole::kActivationIn));
      op.in = nano.received = free.back();
      free.pop_back();
      int64_t& bytes = program_.buffers[op.in].bytes;
      bytes = std::max(bytes, messages.buffer_bytes);
    }
    nano.last = append(std::move(op));
    return;
  }
  const Exchange of_slot{.slot = nano.slot};
  op.out = buffer(BufferRole::kActivationOut, of_slot, messages);
  if (op.out >= 0) op.writes = {op.out};
  wait_for(op, nano.last);
  append(std::move(op));
}

}  // namespace distca
