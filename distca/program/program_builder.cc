#include "distca/program/program_builder.h"

#include <algorithm>
#include <utility>

#include "distca/base/error.h"
#include "distca/base/integers.h"

namespace distca {
namespace {

// Tags of one layer of one nano-batch.
enum TagKind {
  kForwardDispatch,
  kForwardCombine,
  kRedispatchKeys,
  kBackwardDispatch,
  kBackwardCombine
};
constexpr int kTagKinds = 5;
/// The runtime gives tags below this to exchanges, those above to collectives (comm/tags.h).
constexpr int64_t kTagEnd = (1 << 25) - 16;

TagKind tag_kind(OpKind kind, Pass pass) {
  if (kind == OpKind::kRedispatch) return kRedispatchKeys;
  if (pass == Pass::kForward) return kind == OpKind::kDispatch ? kForwardDispatch : kForwardCombine;
  return kind == OpKind::kDispatch ? kBackwardDispatch : kBackwardCombine;
}

void insert_once(std::vector<int32_t>& ascending, int32_t value) {
  const auto place = std::lower_bound(ascending.begin(), ascending.end(), value);
  if (place == ascending.end() || *place != value) ascending.insert(place, value);
}

}  // namespace

ProgramBuilder::ProgramBuilder(const ProgramRequest& request, int slots, Waiting waiting)
    : request_(request), slots_(slots), waiting_(waiting) {
  const size_t buckets = request.gradients ? request.gradients->buckets.size() : 0;
  DISTCA_CHECK_LT(last_attention_tag() + 2 * static_cast<int64_t>(buckets), kTagEnd);
  for (const NanoPart& part : request.nano_batches) {
    nanos_.push_back(make_nano(part));
    program_.exchanges.push_back(part.exchange);
  }
  count_phases();
}

ProgramBuilder::Nano ProgramBuilder::make_nano(const NanoPart& part) const {
  DISTCA_CHECK(part.exchange != nullptr, "a nano-batch without its exchange");
  Nano nano{.exchange = part.exchange.get(),
            .kept = trains() && !part.redispatched,
            .partial_sets = part.exchange->partial_sets()};
  nano.forward_pre_attention.assign(request_.model.num_layers, -1);
  return nano;
}

const std::vector<TaskSet>& ProgramBuilder::partial_sets(int nano_batch) const {
  return nanos_[nano_batch].partial_sets;
}

Op ProgramBuilder::make_op(OpKind kind, Pass pass, int layer, int nano_batch) const {
  Op op;
  op.kind = kind;
  op.pass = pass;
  op.layer = layer;
  op.micro_batch = nano_batch < 0 ? -1 : nano_batch / slots_;
  op.nano_batch = nano_batch;
  return op;
}

/// The first is 1; those of gradients follow.
uint32_t ProgramBuilder::last_attention_tag() const {
  return static_cast<uint32_t>(int64_t{num_nano_batches()} * num_layers() * kTagKinds);
}

Op ProgramBuilder::make_communication(OpKind kind, Pass pass, int layer, int nano_batch) const {
  Op op = make_op(kind, pass, layer, nano_batch);
  op.stream = Stream::kComm;
  op.exchange = nano_batch;
  op.layer_step = layer;
  op.tag = 1 + static_cast<uint32_t>((int64_t{nano_batch} * num_layers() + layer) * kTagKinds +
                                     tag_kind(kind, pass));
  return op;
}

/// That holds all of these messages; none: -1.
int32_t ProgramBuilder::buffer(BufferRole role, int layer, int nano_batch,
                               const MessageList& messages) {
  if (messages.empty()) return -1;
  // Accumulators are free as soon as they have been packed: one buffer for all slots.
  const int slot = role == BufferRole::kAccumulators ? 0 : nano_batch % slots_;
  const auto [place, is_new] =
      buffers_.try_emplace({role, slot, layer}, static_cast<int32_t>(program_.buffers.size()));
  if (is_new) {
    program_.buffers.push_back({.role = role, .bytes = 0});
    uses_.emplace_back();
  }
  int64_t& size = program_.buffers[place->second].bytes;
  size = std::max(size, messages.buffer_bytes);
  return place->second;
}

int32_t ProgramBuilder::qkv_in(int layer, int nano_batch) {
  const Nano& nano = nanos_[nano_batch];
  return buffer(BufferRole::kQkvIn, nano.kept ? layer : 0, nano_batch,
                nano.exchange->homes(Content::kQkv));
}

/// Where gradients are summed in another buffer than the one they are sent from; else -1.
int32_t ProgramBuilder::accumulators(int nano_batch) {
  const AttentionExchange& exchange = *nanos_[nano_batch].exchange;
  if (!exchange.converts_gradients()) return -1;
  return buffer(BufferRole::kAccumulators, nano_batch, exchange.homes(Content::kAccumulator));
}

void ProgramBuilder::wait_for(Op& op, int32_t other) const {
  if (other >= 0) insert_once(op.wait_for, other);
}

/// What is read must have been written, what is written neither be read nor travel any more.
void ProgramBuilder::wait_for_buffers(Op& op) {
  const auto self = static_cast<int32_t>(program_.ops.size());
  const bool computes = op.stream == Stream::kCompute;
  for (int32_t buffer : op.reads) {
    wait_for(op, uses_[buffer].writer);
    // An exchange reads while it packs: before anything that comes after it in the list.
    if (computes) uses_[buffer].readers.push_back(self);
  }
  const auto overwrite = [&](int32_t buffer, bool is_writer) {
    Use& use = uses_[buffer];
    // Who has read it has waited for the writer.
    if (use.readers.empty()) wait_for(op, use.writer);
    for (int32_t reader : use.readers) wait_for(op, reader);
    if (use.sender >= 0) insert_once(op.wait_sends, use.sender);
    use = {.writer = is_writer ? self : -1, .sender = -1, .readers = {}};
  };
  for (int32_t buffer : op.writes) overwrite(buffer, computes);
  if (op.in >= 0) overwrite(op.in, true);
  if (op.out >= 0) {
    wait_for(op, uses_[op.out].writer);
    uses_[op.out].sender = self;
  }
}

int32_t ProgramBuilder::append(Op op) {
  wait_for_buffers(op);
  const auto self = static_cast<int32_t>(program_.ops.size());
  if (waiting_ == Waiting::kForThePrevious) {
    op.wait_for.clear();
    op.wait_sends.clear();
    if (self > 0) {
      op.wait_for.push_back(self - 1);
      if (program_.ops.back().stream == Stream::kComm) op.wait_sends.push_back(self - 1);
    }
  }
  program_.ops.push_back(std::move(op));
  return self;
}

double ProgramBuilder::linear_flops(Pass pass, int nano_batch, int64_t weights) const {
  const double forward = 2.0 * static_cast<double>(weights) *
                         static_cast<double>(nanos_[nano_batch].exchange->rows.local_tokens);
  return pass == Pass::kForward ? forward : 2 * forward;
}

void ProgramBuilder::embed(Pass pass, int nano_batch) {
  if (!request_.holds_weights) return;
  Nano& nano = nanos_[nano_batch];
  Op op = make_op(OpKind::kEmbed, pass, -1, nano_batch);
  wait_for(op, nano.last);
  nano.last = append(std::move(op));
  if (pass == Pass::kBackward) phase_done(OpKind::kEmbed, -1);
}

void ProgramBuilder::pre_attention(Pass pass, int layer, int nano_batch) {
  if (!request_.holds_weights) return;
  Nano& nano = nanos_[nano_batch];
  const AttentionShape& shape = request_.model.attention;
  Op op = make_op(OpKind::kPreAttention, pass, layer, nano_batch);
  op.flops = linear_flops(
      pass, nano_batch,
      request_.model.hidden_size * (shape.num_heads * shape.head_dim_qk +
                                    shape.num_kv_heads * (shape.head_dim_qk + shape.head_dim_v)));
  if (pass == Pass::kForward) {
    wait_for(op, nano.last);
  } else {
    wait_for(op, nano.last_attention);
    wait_for(op, nano.last_combine);
  }
  nano.last = append(std::move(op));
  if (pass == Pass::kForward) nano.forward_pre_attention[layer] = nano.last;
  if (pass == Pass::kBackward) phase_done(OpKind::kPreAttention, layer);
}

void ProgramBuilder::dispatch(Pass pass, int layer, int nano_batch) {
  const Nano& nano = nanos_[nano_batch];
  Op op = make_communication(OpKind::kDispatch, pass, layer, nano_batch);
  if (pass == Pass::kForward) {
    op.out = buffer(BufferRole::kQkvOut, nano_batch, nano.exchange->servers(Content::kQkv));
    op.in = qkv_in(layer, nano_batch);
  } else {
    op.out = buffer(BufferRole::kDOOut, nano_batch, nano.exchange->servers(Content::kDO));
    op.in = buffer(BufferRole::kDOIn, nano_batch, nano.exchange->homes(Content::kDO));
  }
  if (op.out >= 0) op.writes = {op.out};
  wait_for(op, nano.last);
  append(std::move(op));
  if (pass == Pass::kBackward) message_issued();
}

void ProgramBuilder::redispatch(int layer, int nano_batch) {
  const Nano& nano = nanos_[nano_batch];
  if (nano.kept) return;
  Op op = make_communication(OpKind::kRedispatch, Pass::kBackward, layer, nano_batch);
  op.out = buffer(BufferRole::kQkvOut, nano_batch, nano.exchange->servers(Content::kQkv));
  op.in = qkv_in(layer, nano_batch);
  if (op.out >= 0) op.writes = {op.out};
  wait_for(op, nano.forward_pre_attention[layer]);
  append(std::move(op));
}

void ProgramBuilder::core_attention(Pass pass, int layer, int nano_batch, TaskSet tasks) {
  Nano& nano = nanos_[nano_batch];
  const AttentionExchange& exchange = *nano.exchange;
  Op op = make_op(OpKind::kCoreAttention, pass, layer, nano_batch);
  op.tasks = tasks;
  op.exchange = nano_batch;
  op.layer_step = layer;
  op.flops = 2.0 * static_cast<double>(exchange.pairs_of(tasks)) *
             static_cast<double>(exchange.shape.num_heads *
                                 (exchange.shape.head_dim_qk + exchange.shape.head_dim_v));
  if (pass == Pass::kBackward) op.flops *= 2.5;
  if (tasks == TaskSet::kAll || tasks == TaskSet::kAway) {
    const auto use = [](std::vector<int32_t>& list, int32_t buffer) {
      if (buffer >= 0) list.push_back(buffer);
    };
    use(op.reads, qkv_in(layer, nano_batch));
    if (pass == Pass::kForward) {
      use(op.writes, buffer(BufferRole::kOOut, nano_batch, exchange.homes(Content::kO)));
    } else {
      use(op.reads, buffer(BufferRole::kDOIn, nano_batch, exchange.homes(Content::kDO)));
      use(op.writes, exchange.converts_gradients() ? accumulators(nano_batch)
                                                   : buffer(BufferRole::kGradientOut, nano_batch,
                                                            exchange.homes(Content::kGradient)));
    }
  }
  wait_for(op, nano.last);
  nano.last_attention = append(std::move(op));
}

void ProgramBuilder::combine(Pass pass, int layer, int nano_batch) {
  Nano& nano = nanos_[nano_batch];
  const AttentionExchange& exchange = *nano.exchange;
  Op op = make_communication(OpKind::kCombine, pass, layer, nano_batch);
  if (pass == Pass::kForward) {
    op.out = buffer(BufferRole::kOOut, nano_batch, exchange.homes(Content::kO));
    op.in = buffer(BufferRole::kOIn, nano_batch, exchange.servers(Content::kO));
  } else {
    op.out = buffer(BufferRole::kGradientOut, nano_batch, exchange.homes(Content::kGradient));
    op.in = buffer(BufferRole::kGradientIn, nano_batch, exchange.servers(Content::kGradient));
    if (const int32_t summed = accumulators(nano_batch); summed >= 0) {
      op.reads = {summed};
      op.writes = {op.out};
    }
  }
  nano.last_combine = append(std::move(op));
  if (pass == Pass::kBackward) message_issued();
}

void ProgramBuilder::post_attention(Pass pass, int layer, int nano_batch) {
  if (!request_.holds_weights) return;
  Nano& nano = nanos_[nano_batch];
  const AttentionShape& shape = request_.model.attention;
  Op op = make_op(OpKind::kPostAttention, pass, layer, nano_batch);
  op.flops = linear_flops(pass, nano_batch,
                          request_.model.hidden_size * (shape.num_heads * shape.head_dim_v +
                                                        3 * request_.model.intermediate_size));
  if (pass == Pass::kForward) {
    wait_for(op, nano.last_attention);
    wait_for(op, nano.last_combine);
  } else {
    wait_for(op, nano.last);
  }
  nano.last = append(std::move(op));
  if (pass == Pass::kBackward) phase_done(OpKind::kPostAttention, layer);
}

void ProgramBuilder::loss(Pass pass, int nano_batch) {
  if (!request_.holds_weights) return;
  Nano& nano = nanos_[nano_batch];
  Op op = make_op(OpKind::kLoss, pass, -1, nano_batch);
  // Where it trains, forward does backward's work too: logits are never kept.
  if (pass == Pass::kForward) {
    const int64_t weights = request_.model.hidden_size * request_.model.vocab_size;
    op.flops = linear_flops(Pass::kForward, nano_batch, weights);
    if (trains()) op.flops += linear_flops(Pass::kBackward, nano_batch, weights);
  }
  wait_for(op, nano.last);
  nano.last = append(std::move(op));
  if (pass == Pass::kBackward) phase_done(OpKind::kLoss, -1);
}

}  // namespace distca
