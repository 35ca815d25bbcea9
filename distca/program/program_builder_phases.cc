// Phases of the model, and what stages of a pipeline send each other.

#include <algorithm>
#include <array>
#include <utility>

#include "distca/cost/stage_layers.h"
#include "distca/program/program_builder.h"
#include "distca/program/tensor_rows.h"

namespace distca {

namespace {

/// The phases of a layer that have matrices, in the order of backward.
constexpr std::array kWithMatrices = {OpKind::kPostAttention, OpKind::kOutProjection,
                                      OpKind::kPreAttention};

bool has_matrices(OpKind kind) {
  return std::ranges::find(kWithMatrices, kind) != kWithMatrices.end();
}

/// Returns true for parts of phases, which only ranks that divide layers play by themselves.
bool is_part(OpKind kind) {
  return kind == OpKind::kAttentionNorm || kind == OpKind::kOutProjection ||
         kind == OpKind::kMlpNorm;
}

}  // namespace

void ProgramBuilder::begin_visit(const Visit& visit) {
  visit.pass == Pass::kForward ? embed(visit) : loss(visit);
}

void ProgramBuilder::end_visit(const Visit& visit) {
  visit.pass == Pass::kForward ? loss(visit) : embed(visit);
  for (const P2pOp& what : visit.p2p_ops) p2p(visit, what);
}

void ProgramBuilder::start_layer(const Visit& visit, int turn) {
  if (visit.pass == Pass::kForward) {
    phase(OpKind::kAttentionNorm, visit, turn);
    gather_rows(OpKind::kPreAttention, visit, turn);
    return phase(OpKind::kPreAttention, visit, turn);
  }
  gather_rows(OpKind::kPostAttention, visit, turn);
  phase(OpKind::kPostAttention, visit, turn);
  sum_rows(OpKind::kPostAttention, visit, turn);
  phase(OpKind::kMlpNorm, visit, turn);
  // With them go the rows that pre_attention's matrices have read, which its backward wants.
  gather_rows(OpKind::kOutProjection, visit, turn);
  phase(OpKind::kOutProjection, visit, turn);
}

void ProgramBuilder::end_layer(const Visit& visit, int turn) {
  if (visit.pass == Pass::kForward) {
    phase(OpKind::kOutProjection, visit, turn);
    sum_rows(OpKind::kOutProjection, visit, turn);
    phase(OpKind::kMlpNorm, visit, turn);
    gather_rows(OpKind::kPostAttention, visit, turn);
    phase(OpKind::kPostAttention, visit, turn);
    return sum_rows(OpKind::kPostAttention, visit, turn);
  }
  phase(OpKind::kPreAttention, visit, turn);
  sum_rows(OpKind::kPreAttention, visit, turn);
  phase(OpKind::kAttentionNorm, visit, turn);
}

/// Counted as the functions above append them.
ProgramBuilder::Seams ProgramBuilder::seams(const Visit& visit) const {
  if (!plays_phases(visit) || !is_divided()) return {};
  if (visit.pass == Pass::kForward)
    return {.begin_visit = embeds(visit) ? 1 : 0, .start_layer = 1, .end_layer = 3};
  return {.end_visit = embeds(visit) ? 1 : 0, .start_layer = 2 + 1 + 2, .end_layer = 1};
}

/// Elements of the matrices of a phase.
int64_t ProgramBuilder::weights_of(OpKind kind) const {
  const ModelShape& model = request_.model;
  switch (kind) {
    case OpKind::kPreAttention:
      return projection_products(model);
    case OpKind::kOutProjection:
      return output_products(model);
    case OpKind::kPostAttention:
      return layer_products(model) - projection_products(model) -
             (is_divided() ? output_products(model) : 0);
    case OpKind::kLoss:
      return head_products(model);
    default:
      return 0;
  }
}

double ProgramBuilder::linear_flops(OpKind kind, const Visit& visit) const {
  const int64_t tokens = exchanges_[visit.exchange].part->rows.local_tokens;
  const double flops = 2.0 * static_cast<double>(weights_of(kind)) * static_cast<double>(tokens);
  const bool forward = visit.pass == Pass::kForward;
  // Where it trains, forward does backward's work too: logits are never kept.
  if (kind == OpKind::kLoss) return forward ? (trains() ? 3 * flops : flops) : 0;
  return forward || visit.leaves_weights ? flops : 2 * flops;
}

/// The next operation of the nano-batch goes on from this one.
void ProgramBuilder::go_on_from(int32_t op, Nano& nano) {
  nano.last = op;
  if (nano.received < 0) return;
  free_activations_[nano.slot].push_back(nano.received);  // it has landed
  nano.received = -1;
}

/// Returns true if the embedding's phase belongs to this visit.
bool ProgramBuilder::embeds(const Visit& visit) const {
  return part_.stage.is_first() && visit.layers.begin == part_.stage.layers.begin;
}

void ProgramBuilder::embed(const Visit& visit) {
  if (!embeds(visit)) return;
  if (visit.pass == Pass::kBackward) gather_rows(OpKind::kEmbed, visit, -1);
  phase(OpKind::kEmbed, visit, -1);
  if (visit.pass == Pass::kForward) sum_rows(OpKind::kEmbed, visit, -1);
}

void ProgramBuilder::loss(const Visit& visit) {
  if (part_.stage.is_last() && visit.layers.end == part_.stage.layers.end)
    phase(OpKind::kLoss, visit, -1);
}

void ProgramBuilder::phase(OpKind kind, const Visit& visit, int turn) {
  if (!plays_phases(visit) || (is_part(kind) && !is_divided())) return;
  const bool forward = visit.pass == Pass::kForward;
  Op op = make_phase(kind, visit, turn);
  const int layer = op.layer;
  op.flops = linear_flops(kind, visit);
  op.leaves_weights = visit.leaves_weights && has_matrices(kind);
  const bool completes = !forward && !op.leaves_weights;
  if (has_matrices(kind) || kind == OpKind::kEmbed) use_rows(op, visit);
  const OpKind behind_attention = !forward       ? OpKind::kPreAttention
                                  : is_divided() ? OpKind::kOutProjection
                                                 : OpKind::kPostAttention;
  if (kind == behind_attention) {
    wait_for(op, exchange_of(visit).last_attention);
    wait_for(op, exchange_of(visit).last_combine);
  }
  // Out projection adds to rows of the phase before, too; the others behind attention read O alone.
  if (kind != behind_attention || kind == OpKind::kOutProjection) wait_for(op, last_of(visit));
  Nano& nano = nano_of(visit);
  go_on_from(append(std::move(op)), nano);
  if (completes) phase_done(kind, layer);
  if (kind != OpKind::kPreAttention) return;
  nano.tokens = exchange_of(visit).part->rows.local_tokens;
  (forward ? nano.forward_pre_attention
           : nano.backward_pre_attention)[layer - part_.stage.layers.begin] = nano.last;
}

/// Adds the buffers of all rows that a divided phase reads and writes.
void ProgramBuilder::use_rows(Op& op, const Visit& visit) {
  if (!is_divided() || tensor_rows_of(visit).rows == 0) return;
  const bool forward = visit.pass == Pass::kForward;
  const bool is_embed = op.kind == OpKind::kEmbed, is_out = op.kind == OpKind::kOutProjection;
  const TensorRows& rows = tensor_rows_of(visit);
  const auto use = [&](BufferRole role) {
    return buffer(role, exchange_of(visit), rows.rows * rows.row_bytes);
  };
  if (!forward || (!is_embed && !is_out)) op.reads = {use(BufferRole::kRows)};
  if (forward ? op.kind != OpKind::kPreAttention : !is_embed && !is_out)
    op.writes = {use(BufferRole::kPartsOut)};
}

const TensorRows& ProgramBuilder::tensor_rows_of(const Visit& visit) const {
  return program_.tensor_rows[visit.nano_batch];
}

void ProgramBuilder::gather_rows(OpKind of_phase, const Visit& visit, int turn) {
  if (!plays_phases(visit) || !is_divided()) return;
  Op op = make_of_tensor(OpKind::kGatherRows, of_phase, visit, turn);
  op.out = op.in =
      buffer(BufferRole::kRows, exchange_of(visit), buffer_bytes(tensor_rows_of(visit), op));
  if (op.out >= 0) op.writes = {op.out};
  wait_for(op, last_of(visit));
  append_seam(std::move(op), visit);
}

void ProgramBuilder::append_seam(Op op, const Visit& visit) {
  const int rows = gathers_pairs(op) ? 2 : 1;
  go_on_from(append(std::move(op)), nano_of(visit));
  if (seam_) seam_(rows);
}

void ProgramBuilder::sum_rows(OpKind of_phase, const Visit& visit, int turn) {
  if (!plays_phases(visit) || !is_divided()) return;
  Op op = make_of_tensor(OpKind::kSumRows, of_phase, visit, turn);
  const TensorRows& rows = tensor_rows_of(visit);
  op.out = buffer(BufferRole::kPartsOut, exchange_of(visit), rows.part_sends.buffer_bytes);
  op.in = buffer(BufferRole::kPartsIn, exchange_of(visit), rows.part_receives.buffer_bytes);
  wait_for(op, last_of(visit));
  append_seam(std::move(op), visit);
}

void ProgramBuilder::weight_gradients(const Visit& visit, int turn) {
  if (!request_.holds_weights) return;
  for (const WeightGradientOp& what : visit.weight_gradients) {
    if (what.turn != turn) continue;
    Nano& nano = nanos_[what.nano_batch];
    Op op = make_op(OpKind::kWeightGradient, Pass::kBackward, what.layer, what.nano_batch);
    op.tick = visit.tick;
    op.flops = 2.0 * static_cast<double>(layer_products(request_.model)) *
               static_cast<double>(nano.tokens);
    wait_for(op, nano.backward_pre_attention[what.layer - part_.stage.layers.begin]);
    nano.last_weight_gradient = append(std::move(op));
    for (const OpKind kind : kWithMatrices) phase_done(kind, what.layer);
  }
}

void ProgramBuilder::p2p(const Visit& visit, const P2pOp& what) {
  Nano& nano = nanos_[what.nano_batch];
  Op op = make_op(OpKind::kP2p, what.pass, -1, what.nano_batch);
  op.tick = visit.tick;
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
      op.in = nano.received =
          take_free(free_activations_[nano.slot], BufferRole::kActivationIn, messages.buffer_bytes);
    }
    nano.last = append(std::move(op));
    return;
  }
  const Exchange of_slot{.slot = nano.slot};
  op.out = buffer(BufferRole::kActivationOut, of_slot, messages.buffer_bytes);
  if (op.out >= 0) op.writes = {op.out};
  wait_for(op, nano.last);
  append(std::move(op));
}

}  // namespace distca
