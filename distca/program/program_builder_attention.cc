// Core attention of a layer step, and the messages of its exchange.

#include <utility>

#include "distca/program/program_builder.h"

namespace distca {

void ProgramBuilder::dispatch(const Visit& visit, int step) {
  const Exchange& exchange = exchange_of(visit);
  const AttentionExchange& part = *exchange.part;
  Op op = make_communication(OpKind::kDispatch, visit, step);
  if (visit.pass == Pass::kForward) {
    op.out = buffer(BufferRole::kQkvOut, exchange, part.servers(Content::kQkv));
    op.in = qkv_in(visit, step);
  } else {
    op.out = buffer(BufferRole::kDOOut, exchange, part.servers(Content::kDO));
    op.in = buffer(BufferRole::kDOIn, exchange, part.homes(Content::kDO));
  }
  if (op.out >= 0) op.writes = {op.out};
  wait_for(op, last_of(visit));
  append(std::move(op));
  if (visit.pass == Pass::kBackward) message_issued();
}

void ProgramBuilder::redispatch(const Visit& visit, int step) {
  if (visit.pass == Pass::kForward || !visit.redispatched) return;
  const Exchange& exchange = exchange_of(visit);
  Op op = make_communication(OpKind::kRedispatch, visit, step);
  op.out = buffer(BufferRole::kQkvOut, exchange, exchange.part->servers(Content::kQkv));
  op.in = qkv_in(visit, step);
  if (op.out >= 0) op.writes = {op.out};
  if (plays_phases(visit))
    wait_for(op, nano_of(visit).forward_pre_attention[op.layer - part_.stage.layers.begin]);
  append(std::move(op));
}

void ProgramBuilder::core_attention(const Visit& visit, int step, TaskSet tasks) {
  Op op = make_of_exchange(OpKind::kCoreAttention, visit, step);
  op.tasks = tasks;
  const bool is_away = tasks == TaskSet::kAll || tasks == TaskSet::kAway;
  append_attention(std::move(op), visit, step, exchange_of(visit).part->pairs_of(tasks),
                   {.keys = is_away, .queries = is_away});
}

void ProgramBuilder::core_attention(const Visit& visit, int step, const Range& shares) {
  Exchange& exchange = exchange_of(visit);
  const std::vector<ServerTask>& tasks = exchange.part->rows.tasks;
  if (tasks.empty()) {
    if (shares.begin == 0) core_attention(visit, step, TaskSet::kAll);
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
  Op op = make_of_exchange(OpKind::kCoreAttention, visit, step);
  op.part = place->second;
  append_attention(std::move(op), visit, step, pairs, used);
}

void ProgramBuilder::append_attention(Op op, const Visit& visit, int step, int64_t pairs,
                                      const MessagesUsed& used) {
  Exchange& exchange = exchange_of(visit);
  const AttentionExchange& part = *exchange.part;
  op.flops = 2.0 * static_cast<double>(pairs) * static_cast<double>(part.shape.pair_products());
  if (visit.pass == Pass::kBackward) op.flops *= 2.5;
  const auto use = [](std::vector<int32_t>& list, int32_t buffer) {
    if (buffer >= 0) list.push_back(buffer);
  };
  const bool forward = visit.pass == Pass::kForward;
  if (used.keys) use(op.reads, qkv_in(visit, step));
  if (forward && used.queries)
    use(op.writes, buffer(BufferRole::kOOut, exchange, part.homes(Content::kO)));
  if (!forward && used.queries)
    use(op.reads, buffer(BufferRole::kDOIn, exchange, part.homes(Content::kDO)));
  if (!forward && used.keys)
    use(op.writes, part.converts_gradients() ? accumulators(exchange)
                                             : buffer(BufferRole::kGradientOut, exchange,
                                                      part.homes(Content::kGradient)));
  wait_for(op, last_of(visit));
  exchange.last_attention = append(std::move(op));
}

void ProgramBuilder::combine(const Visit& visit, int step) {
  Exchange& exchange = exchange_of(visit);
  const AttentionExchange& part = *exchange.part;
  Op op = make_communication(OpKind::kCombine, visit, step);
  if (visit.pass == Pass::kForward) {
    op.out = buffer(BufferRole::kOOut, exchange, part.homes(Content::kO));
    op.in = buffer(BufferRole::kOIn, exchange, part.servers(Content::kO));
  } else {
    op.out = buffer(BufferRole::kGradientOut, exchange, part.homes(Content::kGradient));
    op.in = buffer(BufferRole::kGradientIn, exchange, part.servers(Content::kGradient));
    if (const int32_t summed = accumulators(exchange); summed >= 0) {
      op.reads = {summed};
      op.writes = {op.out};
    }
  }
  exchange.last_combine = append(std::move(op));
  if (visit.pass == Pass::kBackward) message_issued();
}

}  // namespace distca
