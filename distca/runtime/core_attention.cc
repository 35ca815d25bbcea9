#include "distca/runtime/core_attention.h"

#include <ATen/ATen.h>

#include "distca/runtime/core_attention_state.h"

namespace distca {

CoreAttention::CoreAttention(RankExchange exchange, const CoreAttentionOptions& options,
                             Communicator& comm)
    : state_(std::make_unique<State>(std::move(exchange), options, comm)) {}
CoreAttention::~CoreAttention() = default;

void CoreAttention::enter(int layer_index, const at::Tensor& q, const at::Tensor& k,
                          const at::Tensor& v, std::string_view operation) {
  State& s = *state_;
  State::Layer& layer = s.layers[layer_index];
  const kernels::Shape& shape = s.options.shape;
  s.check_local("q", q, shape.num_heads, shape.head_dim_qk);
  s.check_local("k", k, shape.num_kv_heads, shape.head_dim_qk);
  s.check_local("v", v, shape.num_kv_heads, shape.head_dim_v);
  layer = {};
  layer.q = q;
  layer.k = k;
  layer.v = v;
  std::vector<Block> packed;
  std::vector<Message> sends, receives;
  for (const PeerTransfer& transfer : s.exchange.sends) {
    packed.push_back(s.qkv_block(transfer));
    s.pack(q, transfer.q, packed.back().parts[0]);
    s.pack(k, transfer.kv, packed.back().parts[1]);
    s.pack(v, transfer.kv, packed.back().parts[2]);
    sends.push_back(to_message(packed.back(), transfer.peer, s.tag(layer_index, 0)));
  }
  for (const PeerTransfer& transfer : s.exchange.receives) {
    layer.received.push_back(s.qkv_block(transfer));
    receives.push_back(to_message(layer.received.back(), transfer.peer, s.tag(layer_index, 0)));
  }
  s.run_exchange(sends, receives, operation);
}

void CoreAttention::attend(int layer_index) {
  State& s = *state_;
  State::Layer& layer = s.layers[layer_index];
  const kernels::Shape& shape = s.options.shape;
  const int64_t tokens = s.exchange.local_tokens;
  const auto options = at::dtype(s.type).device(s.device());
  layer.o = at::empty({tokens, shape.num_heads, shape.head_dim_v}, options);
  layer.lse = at::empty({tokens, shape.num_heads, 1}, options.dtype(s.accumulator));
  for (const PeerTransfer& transfer : s.exchange.receives)
    layer.returned.push_back(s.o_block(transfer));

  s.run_tasks(layer);
  for (const RowMerge& rows : s.exchange.merges) {
    if (rows.block == 0) continue;  // in leave: parts of it may be elsewhere
    const Block& block = layer.returned[rows.block - 1];
    s.merge(layer, {}, rows, {block.parts[0], block.parts[1]});
  }
}

at::Tensor CoreAttention::leave(int layer_index, std::string_view operation) {
  State& s = *state_;
  State::Layer& layer = s.layers[layer_index];
  std::vector<Block> arrived;
  std::vector<Message> sends, receives;
  for (size_t i = 0; i < s.exchange.receives.size(); ++i) {
    if (s.exchange.receives[i].q_tokens == 0) continue;  // gave keys only
    sends.push_back(
        to_message(layer.returned[i], s.exchange.receives[i].peer, s.tag(layer_index, 1)));
  }
  for (const PeerTransfer& transfer : s.exchange.sends) {
    arrived.push_back(s.o_block(transfer));
    if (transfer.q_tokens == 0) continue;
    receives.push_back(to_message(arrived.back(), transfer.peer, s.tag(layer_index, 1)));
  }
  s.run_exchange(sends, receives, operation);
  for (size_t i = 0; i < arrived.size(); ++i) {
    s.unpack(arrived[i].parts[0], s.exchange.sends[i].q, layer.o);
    s.unpack(arrived[i].parts[1], s.exchange.sends[i].q, layer.lse);
  }
  for (const RowMerge& rows : s.exchange.merges) {
    if (rows.block == 0) s.merge(layer, arrived, rows, {layer.o, layer.lse});
  }
  layer.returned.clear();
  layer.partials.clear();
  return layer.o;
}

void CoreAttention::drop(int layer) { state_->layers[layer] = {}; }

const ExchangeBytes& CoreAttention::bytes() const { return state_->bytes; }

}  // namespace distca
