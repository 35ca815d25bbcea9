// Phases of the model, and what stages of a pipeline send each other.

#include <algorithm>
#include <utility>

#include "distca/base/error.h"
#include "distca/program/program_builder.h"
#include "distca/program/tensor_rows.h"

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
  if (visit.pass == Pass::kForward) {
    divided_phase(OpKind::kAttentionNorm, visit, step);
    gather_rows(OpKind::kPreAttention, visit, step);
    return pre_attention(visit, step);
  }
  gather_rows(OpKind::kPostAttention, visit, step);
  post_attention(visit, step);
  sum_rows(OpKind::kPostAttention, visit, step);
  divided_phase(OpKind::kMlpNorm, visit, step);
  // With them go the rows that pre_attention's matrices have read, which its backward wants.
  gather_rows(OpKind::kOutProjection, visit, step);
  divided_phase(OpKind::kOutProjection, visit, step);
}

void ProgramBuilder::end_layer(const Visit& visit, int turn) {
  const int step = layer_step(visit, turn);
  if (visit.pass == Pass::kForward) {
    divided_phase(OpKind::kOutProjection, visit, step);
    sum_rows(OpKind::kOutProjection, visit, step);
    divided_phase(OpKind::kMlpNorm, visit, step);
    gather_rows(OpKind::kPostAttention, visit, step);
    post_attention(visit, step);
    return sum_rows(OpKind::kPostAttention, visit, step);
  }
  pre_attention(visit, step);
  sum_rows(OpKind::kPreAttention, visit, step);
  divided_phase(OpKind::kAttentionNorm, visit, step);
}

/// Counted as the functions above append them.
ProgramBuilder::Seams ProgramBuilder::seams(const Visit& visit) const {
  if (!plays_phases(visit) || !is_divided()) return {};
  const bool embeds = part_.stage.is_first() && visit.layers.begin == part_.stage.layers.begin;
  if (visit.pass == Pass::kForward)
    return {.begin_visit = embeds ? 1 : 0, .start_layer = 1, .end_layer = 3};
  return {.end_visit = embeds ? 1 : 0, .start_layer = 2 + 1 + 2, .end_layer = 1};
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
int64_t ProgramBuilder::out_projection_weights() const {
  const AttentionShape& shape = request_.model.attention;
  return request_.model.hidden_size * shape.num_heads * shape.head_dim_v;
}
int64_t ProgramBuilder::mlp_weights() const {
  return 3 * request_.model.hidden_size * request_.model.intermediate_size;
}

/// The next operation of the nano-batch goes on from this one.
void ProgramBuilder::go_on_from(int32_t op, Nano& nano) {
  nano.last = op;
  if (nano.received < 0) return;
  free_activations_[nano.slot].push_back(nano.received);  // it has landed
  nano.received = -1;
}

void ProgramBuilder::append_phase(Op op, const Visit& visit) {
  const OpKind kind = op.kind;
  const int layer = op.layer;
  const bool completes = visit.pass == Pass::kBackward && !op.leaves_weights;
  go_on_from(append(std::move(op)), nano_of(visit));
  if (completes) phase_done(kind, layer);
}

void ProgramBuilder::embed(const Visit& visit) {
  if (!plays_phases(visit)) return;
  if (visit.pass == Pass::kBackward) gather_rows(OpKind::kEmbed, visit, -1);
  Op op = make_phase(OpKind::kEmbed, visit, -1);
  use_rows(op, visit);
  wait_for(op, last_of(visit));
  append_phase(std::move(op), visit);
  if (visit.pass == Pass::kForward) sum_rows(OpKind::kEmbed, visit, -1);
}

/// Adds the buffers of all rows that a divided phase reads and writes.
void ProgramBuilder::use_rows(Op& op, const Visit& visit) {
  if (!is_divided() || tensor_rows_of(visit).rows == 0) return;
  const bool forward = visit.pass == Pass::kForward;
  const bool is_embed = op.kind == OpKind::kEmbed, is_out = op.kind == OpKind::kOutProjection;
  const TensorRows& rows = tensor_rows_of(visit);
  if (forward ? !is_embed && !is_out : true) op.reads = {rows_buffer(BufferRole::kRows, visit, 0)};
  if (forward ? op.kind != OpKind::kPreAttention : !is_embed && !is_out)
    op.writes = {rows_buffer(BufferRole::kPartsOut, visit, rows.rows * rows.row_bytes)};
}

const TensorRows& ProgramBuilder::tensor_rows_of(const Visit& visit) const {
  return program_.tensor_rows[visit.nano_batch];
}

/// A buffer that visits to an exchange of this slot share, of at least so many bytes.
int32_t ProgramBuilder::rows_buffer(BufferRole role, const Visit& visit, int64_t bytes) {
  const auto [place, is_new] =
      buffers_.try_emplace({role, exchange_of(visit).slot, visit.is_beside, -1}, -1);
  if (is_new) place->second = new_buffer(role);
  int64_t& size = program_.buffers[place->second].bytes;
  size = std::max(size, bytes);
  return place->second;
}

void ProgramBuilder::gather_rows(OpKind of_phase, const Visit& visit, int step) {
  if (!plays_phases(visit) || !is_divided()) return;
  Op op = make_of_tensor(OpKind::kGatherRows, of_phase, visit, step);
  if (const int64_t bytes = buffer_bytes(tensor_rows_of(visit), op); bytes > 0) {
    op.out = op.in = rows_buffer(BufferRole::kRows, visit, bytes);
    op.writes = {op.out};
  }
  wait_for(op, last_of(visit));
  append_seam(std::move(op), visit);
}

void ProgramBuilder::append_seam(Op op, const Visit& visit) {
  const int rows = gathers_pairs(op) ? 2 : 1;
  go_on_from(append(std::move(op)), nano_of(visit));
  if (seam_) seam_(rows);
}

void ProgramBuilder::sum_rows(OpKind of_phase, const Visit& visit, int step) {
  if (!plays_phases(visit) || !is_divided()) return;
  Op op = make_of_tensor(OpKind::kSumRows, of_phase, visit, step);
  const TensorRows& rows = tensor_rows_of(visit);
  if (rows.rows > 0) op.out = rows_buffer(BufferRole::kPartsOut, visit, 0);
  if (!rows.part_receives.empty())
    op.in = rows_buffer(BufferRole::kPartsIn, visit, rows.part_receives.buffer_bytes);
  wait_for(op, last_of(visit));
  append_seam(std::move(op), visit);
}

void ProgramBuilder::divided_phase(OpKind kind, const Visit& visit, int step) {
  if (!plays_phases(visit) || !is_divided()) return;
  Op op = make_phase(kind, visit, step);
  wait_for(op, last_of(visit));
  if (kind == OpKind::kOutProjection) {
    op.flops = linear_flops(visit, out_projection_weights());
    op.leaves_weights = visit.leaves_weights;
    use_rows(op, visit);
    if (visit.pass == Pass::kForward) wait_for_attention(op, visit);
  }
  append_phase(std::move(op), visit);
}

void ProgramBuilder::wait_for_attention(Op& op, const Visit& visit) {
  wait_for(op, exchange_of(visit).last_attention);
  wait_for(op, exchange_of(visit).last_combine);
}

void ProgramBuilder::pre_attention(const Visit& visit, int step) {
  if (!plays_phases(visit)) return;
  Op op = make_phase(OpKind::kPreAttention, visit, step);
  op.flops = linear_flops(visit, pre_attention_weights());
  op.leaves_weights = visit.leaves_weights;
  const int64_t layer = op.layer - part_.stage.layers.begin;
  use_rows(op, visit);
  visit.pass == Pass::kForward ? wait_for(op, last_of(visit)) : wait_for_attention(op, visit);
  append_phase(std::move(op), visit);
  Nano& nano = nano_of(visit);
  nano.tokens = exchanges_[visit.exchange].part->rows.local_tokens;
  (visit.pass == Pass::kForward ? nano.forward_pre_attention : nano.backward_pre_attention)[layer] =
      last_of(visit);
}

void ProgramBuilder::post_attention(const Visit& visit, int step) {
  if (!plays_phases(visit)) return;
  Op op = make_phase(OpKind::kPostAttention, visit, step);
  const int64_t of_divided = mlp_weights();
  op.flops = linear_flops(visit, is_divided() ? of_divided : of_divided + out_projection_weights());
  op.leaves_weights = visit.leaves_weights;
  use_rows(op, visit);
  const bool ends_attention = visit.pass == Pass::kForward && !is_divided();
  ends_attention ? wait_for_attention(op, visit) : wait_for(op, last_of(visit));
  append_phase(std::move(op), visit);
}

void ProgramBuilder::weight_gradients(const Visit& visit, int turn) {
  if (!request_.holds_weights) return;
  for (const WeightGradientOp& what : visit.weight_gradients) {
    if (what.turn != turn) continue;
    Nano& nano = nanos_[what.nano_batch];
    Op op = make_op(OpKind::kWeightGradient, Pass::kBackward, what.layer, what.nano_batch);
    op.tick = visit.tick;
    op.flops =
        2.0 *
        static_cast<double>(pre_attention_weights() + out_projection_weights() + mlp_weights()) *
        static_cast<double>(nano.tokens);
    wait_for(op, nano.backward_pre_attention[what.layer - part_.stage.layers.begin]);
    nano.last_weight_gradient = append(std::move(op));
    for (const OpKind phase :
         {OpKind::kPostAttention, OpKind::kOutProjection, OpKind::kPreAttention})
      phase_done(phase, what.layer);
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
  // A boundary has the index of the virtual stage before it. Tags differ by nano-batch, boundary
  // and pass.
  const bool is_next = (what.pass == Pass::kForward) != what.is_receive;
  const int count = part_.stage.count;
  const int before = (part_.stage.index + (is_next ? 0 : count - 1)) % count;
  const int boundary = what.virtual_stage * count + before;
  op.tag = last_attention_tag() + 1 +
           2 * static_cast<uint32_t>(what.nano_batch * num_boundaries() + boundary) +
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
