// Core attention of a layer step, and the messages of its exchange.

#include <utility>

#include "distca/program/program_builder.h"

namespace distca {

Op ProgramBuilder::make_dispatch(OpKind kind, const Visit& visit, int turn) {
  const Exchange& exchange = exchange_of(visit);
  Op op = make_communication(kind, visit, turn);
  const bool is_of_keys = content_of(op) == Content::kQkv;
  op.out = buffer(is_of_keys ? BufferRole::kQkvOut : BufferRole::kDOOut, exchange,
                  program_.sends(op).buffer_bytes);
  op.in = is_of_keys ? qkv_in(visit, turn)
                     : buffer(BufferRole::kDOIn, exchange, program_.receives(op).buffer_bytes);
  if (op.out >= 0) op.writes = {op.out};
  return op;
}

void ProgramBuilder::dispatch(const Visit& visit, int turn) {
  Op op = make_dispatch(OpKind::kDispatch, visit, turn);
  wait_for(op, last_of(visit));
  append(std::move(op));
  if (visit.pass == Pass::kBackward) message_issued();
}

void ProgramBuilder::redispatch(const Visit& visit, int turn) {
  if (visit.pass == Pass::kForward || !visit.redispatched) return;
  Op op = make_dispatch(OpKind::kRedispatch, visit, turn);
  if (plays_phases(visit))
    wait_for(op, nano_of(visit).forward_pre_attention[op.layer - part_.stage.layers.begin]);
  append(std::move(op));
}

void ProgramBuilder::core_attention(const Visit& visit, int turn, TaskSet tasks) {
  Op op = make_of_exchange(OpKind::kCoreAttention, visit, turn);
  op.tasks = tasks;
  const bool is_away = tasks == TaskSet::kAll || tasks == TaskSet::kAway;
  append_attention(std::move(op), visit, turn, exchange_of(visit).part->pairs_of(tasks),
                   {.keys = is_away, .queries = is_away});
}

void ProgramBuilder::core_attention(const Visit& visit, int turn, const Range& shares) {
  Exchange& exchange = exchange_of(visit);
  const std::vector<ServerTask>& tasks = exchange.part->rows.tasks;
  if (tasks.empty()) {
    if (shares.begin == 0) core_attention(visit, turn, TaskSet::kAll);
    return;
  }
  std::unique_ptr<const AttentionShares>& all = exchange.shares[static_cast<size_t>(visit.pass)];
  if (all == nullptr)
    all = std::make_unique<const AttentionShares>(*exchange.part, visit.pass,
                                                  request_.least_share_pairs);
  AttentionPart part = all->part(shares);
  if (part.pieces.empty()) return;
  MessagesUsed used;
  for (const TaskPiece& piece : part.pieces) {
    used.keys = used.keys || !is_home(tasks[piece.task]);
    used.queries = used.queries || is_returned(tasks[piece.task]);
  }
  const int64_t pairs = part.pairs;
  program_.attention_parts.resize(program_.exchanges.size());
  std::vector<AttentionPart>& parts =
      program_.attention_parts[visit.exchange][static_cast<size_t>(visit.pass)];
  const auto [place, is_new] =
      parts_.try_emplace({visit.exchange, visit.pass, shares}, static_cast<int>(parts.size()));
  if (is_new) parts.push_back(std::move(part));
  Op op = make_of_exchange(OpKind::kCoreAttention, visit, turn);
  op.part = place->second;
  append_attention(std::move(op), visit, turn, pairs, used);
}

void ProgramBuilder::append_attention(Op op, const Visit& visit, int turn, int64_t pairs,
                                      const MessagesUsed& used) {
  Exchange& exchange = exchange_of(visit);
  const AttentionExchange& part = *exchange.part;
  op.flops = 2.0 * static_cast<double>(pairs) * static_cast<double>(part.shape.pair_products());
  if (visit.pass == Pass::kBackward) op.flops *= 2.5;
  const auto use = [](std::vector<int32_t>& list, int32_t buffer) {
    if (buffer >= 0) list.push_back(buffer);
  };
  const bool forward = visit.pass == Pass::kForward;
  if (used.keys) use(op.reads, qkv_in(visit, turn));
  if (forward && used.queries)
    use(op.writes, buffer(BufferRole::kOOut, exchange, part.homes(Content::kO).buffer_bytes));
  if (!forward && used.queries)
    use(op.reads, buffer(BufferRole::kDOIn, exchange, part.homes(Content::kDO).buffer_bytes));
  if (!forward && used.keys) use(op.writes, sums_of_gradients(exchange));
  wait_for(op, last_of(visit));
  exchange.last_attention = append(std::move(op));
}

void ProgramBuilder::combine(const Visit& visit, int turn) {
  Exchange& exchange = exchange_of(visit);
  const bool forward = visit.pass == Pass::kForward;
  Op op = make_communication(OpKind::kCombine, visit, turn);
  op.out = buffer(forward ? BufferRole::kOOut : BufferRole::kGradientOut, exchange,
                  program_.sends(op).buffer_bytes);
  op.in = buffer(forward ? BufferRole::kOIn : BufferRole::kGradientIn, exchange,
                 program_.receives(op).buffer_bytes);
  if (!forward && op.out >= 0 && exchange.part->converts_gradients()) {
    op.reads = {sums_of_gradients(exchange)};
    op.writes = {op.out};
  }
  exchange.last_combine = append(std::move(op));
  if (visit.pass == Pass::kBackward) message_issued();
}

}  // namespace distca
