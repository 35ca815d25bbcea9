#include <ATen/ATen.h>

#include "distca/runtime/aten_attention.h"
#include "distca/runtime/core_attention_state.h"

namespace distca {

void CoreAttention::enter_backward(int layer_index, const at::Tensor& d_o,
                                   std::string_view operation) {
  State& s = *state_;
  State::Layer& layer = s.layers[layer_index];
  s.check_local("d_o", d_o, s.options.shape.num_heads, s.options.shape.head_dim_v);
  layer.d_o = d_o;
  layer.delta = (d_o.to(s.accumulator) * layer.o.to(s.accumulator)).sum(-1, /*keepdim=*/true);
  std::vector<Block> packed;
  std::vector<Message> sends, receives;
  for (const PeerTransfer& transfer : s.exchange.sends) {
    if (transfer.q_tokens == 0) continue;
    packed.push_back(s.d_o_block(transfer));
    s.pack(d_o, transfer.q, packed.back().parts[0]);
    s.pack(layer.lse, transfer.q, packed.back().parts[1]);
    s.pack(layer.delta, transfer.q, packed.back().parts[2]);
    sends.push_back(to_message(packed.back(), transfer.peer, s.tag(layer_index, 2)));
  }
  for (const PeerTransfer& transfer : s.exchange.receives) {
    layer.received_backward.push_back(s.d_o_block(transfer));
    if (transfer.q_tokens == 0) continue;
    receives.push_back(
        to_message(layer.received_backward.back(), transfer.peer, s.tag(layer_index, 2)));
  }
  s.run_exchange(sends, receives, operation);
}

void CoreAttention::attend_backward(int layer_index) {
  State& s = *state_;
  State::Layer& layer = s.layers[layer_index];
  const auto options = at::dtype(s.accumulator).device(s.device());
  layer.dq = at::zeros(layer.q.sizes(), options);
  layer.dk = at::zeros(layer.k.sizes(), options);
  layer.dv = at::zeros(layer.v.sizes(), options);
  for (const PeerTransfer& transfer : s.exchange.receives) {
    layer.accumulators.push_back(s.gradient_block(transfer, s.accumulator));
    layer.accumulators.back().bytes.zero_();
  }

  std::vector<std::vector<kernels::KeyFragment>> keys;
  std::vector<std::vector<kernels::KeyGradient>> gradients;
  std::vector<kernels::BackwardTask> tasks;
  keys.reserve(s.exchange.tasks.size());
  gradients.reserve(s.exchange.tasks.size());
  for (const ServerTask& task : s.exchange.tasks) {
    keys.push_back(s.fragments(layer, task));
    std::vector<kernels::KeyGradient>& task_gradients = gradients.emplace_back();
    for (const BlockRows& rows : task.kv) {
      task_gradients.push_back({.dk = resolve(layer.dk, layer.accumulators, 1, rows),
                                .dv = resolve(layer.dv, layer.accumulators, 2, rows)});
    }
    tasks.push_back({.q = resolve(layer.q, layer.received, 0, task.q),
                     .d_o = resolve(layer.d_o, layer.received_backward, 0, task.q),
                     .lse = resolve(layer.lse, layer.received_backward, 1, task.q),
                     .delta = resolve(layer.delta, layer.received_backward, 2, task.q),
                     .dq = resolve(layer.dq, layer.accumulators, 0, task.q),
                     .q_tokens = task.q.tokens,
                     .q_position = task.q.position,
                     .keys = keys.back(),
                     .key_gradients = task_gradients,
                     .mask = {.causal = true, .window_left = s.options.window_left}});
  }
  aten_backward(s.options.shape, s.options.dtype, tasks, s.comm.cuda_device());
}

void CoreAttention::leave_backward(int layer_index, at::Tensor* dq, at::Tensor* dk, at::Tensor* dv,
                                   std::string_view operation) {
  State& s = *state_;
  State::Layer& layer = s.layers[layer_index];
  std::vector<Block> outgoing, arrived;
  std::vector<Message> sends, receives;
  for (size_t i = 0; i < s.exchange.receives.size(); ++i) {
    const PeerTransfer& transfer = s.exchange.receives[i];
    outgoing.push_back(layer.accumulators[i]);
    if (s.travel_type() != s.accumulator) {
      outgoing.back() = s.gradient_block(transfer, s.travel_type());
      for (int part = 0; part < 3; ++part) {
        outgoing.back().parts[part].copy_(layer.accumulators[i].parts[part]);
      }
      s.bytes.copied += outgoing.back().bytes.numel();
    }
    sends.push_back(to_message(outgoing.back(), transfer.peer, s.tag(layer_index, 3)));
  }
  for (const PeerTransfer& transfer : s.exchange.sends) {
    arrived.push_back(s.gradient_block(transfer, s.travel_type()));
    receives.push_back(to_message(arrived.back(), transfer.peer, s.tag(layer_index, 3)));
  }
  s.run_exchange(sends, receives, operation);
  // Local contributions first, then the servers in ascending rank: a fixed order of summation.
  for (size_t i = 0; i < arrived.size(); ++i) {
    s.add(arrived[i].parts[0], s.exchange.sends[i].q, layer.dq);
    s.add(arrived[i].parts[1], s.exchange.sends[i].kv, layer.dk);
    s.add(arrived[i].parts[2], s.exchange.sends[i].kv, layer.dv);
  }
  *dq = layer.dq.to(s.type);
  *dk = layer.dk.to(s.type);
  *dv = layer.dv.to(s.type);
  drop(layer_index);
}

}  // namespace distca
