#include "distca/runtime/attention_messages.h"

#include <algorithm>

#include "distca/base/error.h"

namespace distca {

Content content_of(const Op& op) {
  const bool forward = op.pass == Pass::kForward;
  switch (op.kind) {
    case OpKind::kEnter:
      return forward ? Content::kQkv : Content::kDO;
    case OpKind::kResend:
      return Content::kQkv;
    case OpKind::kLeave:
      return forward ? Content::kO : Content::kGradient;
    default:
      DISTCA_CHECK(false, "no exchange of core attention: {}", describe(op));
  }
}

AttentionMessages::AttentionMessages(const RankExchange& exchange, const kernels::Shape& shape,
                                     const ExchangeTypes& types, const ExchangeBuffers& buffers)
    : exchange_(exchange), shape_(shape), types_(types), buffers_(buffers) {
  for (int i = 0; i < kNumContents; ++i) {
    servers_[i] = layout(static_cast<Content>(i), exchange.sends);
    homes_[i] = layout(static_cast<Content>(i), exchange.receives);
  }
}

std::vector<Block> AttentionMessages::with_servers(Content content, int32_t buffer) const {
  return blocks(content, exchange_.sends, servers_[static_cast<int>(content)], buffer);
}
std::vector<Block> AttentionMessages::with_homes(Content content, int32_t buffer) const {
  return blocks(content, exchange_.receives, homes_[static_cast<int>(content)], buffer);
}
bool AttentionMessages::any_with_servers(Content content) const {
  const Layout& all = servers_[static_cast<int>(content)];
  return std::any_of(all.begin(), all.end(), [](const Range& bytes) { return !bytes.empty(); });
}
std::vector<Block> AttentionMessages::incoming(const Op& op) const {
  const Content content = content_of(op);
  return op.kind == OpKind::kLeave ? with_servers(content, op.in) : with_homes(content, op.in);
}

void AttentionMessages::check(const Op& op) const {
  const auto check_side = [&](const std::vector<OpMessage>& messages,
                              const std::vector<PeerTransfer>& transfers, const Layout& layout) {
    std::vector<OpMessage> expected;
    for (size_t i = 0; i < transfers.size(); ++i) {
      if (layout[i].empty()) continue;
      expected.push_back({transfers[i].peer, layout[i].begin, layout[i].size()});
    }
    DISTCA_CHECK(messages == expected, "{}: its messages are not the plan's", describe(op));
  };
  const int content = static_cast<int>(content_of(op));
  const bool leaves = op.kind == OpKind::kLeave;
  check_side(leaves ? op.receives : op.sends, exchange_.sends, servers_[content]);
  check_side(leaves ? op.sends : op.receives, exchange_.receives, homes_[content]);
}

int64_t AttentionMessages::message_bytes(Content content, const PeerTransfer& transfer) const {
  const AttentionShape shape{.num_heads = shape_.num_heads,
                             .num_kv_heads = shape_.num_kv_heads,
                             .head_dim_qk = shape_.head_dim_qk,
                             .head_dim_v = shape_.head_dim_v,
                             .element_bytes = element_bytes(types_.compute)};
  switch (content) {
    case Content::kQkv:
      return qkv_message_bytes(transfer, shape, types_);
    case Content::kO:
      return o_message_bytes(transfer, shape, types_);
    case Content::kDO:
      return d_o_message_bytes(transfer, shape, types_);
    case Content::kGradient:
      return gradient_message_bytes(transfer, shape, types_.gradient);
    case Content::kAccumulator:
      return gradient_message_bytes(transfer, shape, types_.accumulator);
  }
  return 0;
}

AttentionMessages::Layout AttentionMessages::layout(
    Content content, const std::vector<PeerTransfer>& transfers) const {
  Layout result;
  int64_t next = 0;
  for (const PeerTransfer& transfer : transfers) {
    const int64_t bytes = message_bytes(content, transfer);
    result.push_back({next, next + bytes});
    next = round_up(next + bytes, kMessageAlignment);
  }
  return result;
}

Block AttentionMessages::block(Content content, const PeerTransfer& t, std::byte* memory,
                               int64_t bytes) const {
  const kernels::Shape& s = shape_;
  const int device = buffers_.cuda_device();
  if (content == Content::kO || content == Content::kDO) {
    const BlockPart o{t.q_tokens, s.num_heads, s.head_dim_v, types_.compute};
    const BlockPart number{t.q_tokens, s.num_heads, 1, types_.accumulator};
    if (content == Content::kO) return {memory, bytes, {o, number}, device};
    return {memory, bytes, {o, number, number}, device};
  }
  const ScalarType type = content == Content::kQkv        ? types_.compute
                          : content == Content::kGradient ? types_.gradient
                                                          : types_.accumulator;
  return {memory,
          bytes,
          {{t.q_tokens, s.num_heads, s.head_dim_qk, type},
           {t.kv_tokens, s.num_kv_heads, s.head_dim_qk, type},
           {t.kv_tokens, s.num_kv_heads, s.head_dim_v, type}},
          device};
}

std::vector<Block> AttentionMessages::blocks(Content content,
                                             const std::vector<PeerTransfer>& transfers,
                                             const Layout& layout, int32_t buffer) const {
  const int64_t size = buffer < 0 ? 0 : buffers_.bytes(buffer);
  std::vector<Block> result;
  for (size_t i = 0; i < transfers.size(); ++i) {
    const Range& bytes = layout[i];
    DISTCA_CHECK(bytes.empty() || bytes.end <= size,
                 "a message ends at byte {} of buffer {}, which has {}", bytes.end, buffer, size);
    std::byte* const memory = bytes.empty() ? nullptr : buffers_.data(buffer) + bytes.begin;
    result.push_back(block(content, transfers[i], memory, bytes.size()));
  }
  return result;
}

}  // namespace distca
