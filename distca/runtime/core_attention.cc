#include "distca/runtime/core_attention.h"

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "distca/base/error.h"
#include "distca/comm/aten_types.h"
#include "distca/comm/tags.h"
#include "distca/runtime/aten_attention.h"

namespace distca {
namespace {

using kernels::Rows;

/// [rows, heads, dim] of one type inside a message.
struct Part {
  int64_t rows;
  int64_t heads;
  int64_t dim;
  at::ScalarType type;

  int64_t bytes() const {
    return rows * heads * dim * static_cast<int64_t>(c10::elementSize(type));
  }
};

/// One message: a flat buffer and its parts as tensors. Head dimensions are multiples of 8, so that
/// every part begins at a multiple of 16 bytes when the wide ones come first.
struct Block {
  at::Tensor bytes;
  std::vector<at::Tensor> parts;
};

Block make_block(std::initializer_list<Part> parts, at::Device device) {
  int64_t total = 0;
  for (const Part& part : parts) total += part.bytes();
  Block block{.bytes = at::empty({total}, at::dtype(at::kByte).device(device)), .parts = {}};
  int64_t at_byte = 0;
  for (const Part& part : parts) {
    block.parts.push_back(block.bytes.narrow(0, at_byte, part.bytes())
                              .view(part.type)
                              .view({part.rows, part.heads, part.dim}));
    at_byte += part.bytes();
  }
  return block;
}

Message to_message(const Block& block, int peer, uint32_t tag) {
  return {.peer = peer,
          .tag = tag,
          .data = static_cast<std::byte*>(block.bytes.data_ptr()),
          .bytes = block.bytes.numel()};
}

/// Rows of a [tokens, heads, dim] tensor from `row` on.
Rows rows_of(const at::Tensor& tensor, int64_t row) {
  const int64_t offset = row * tensor.stride(0) * static_cast<int64_t>(tensor.element_size());
  return {.data = static_cast<std::byte*>(tensor.data_ptr()) + offset,
          .token_stride = tensor.stride(0),
          .head_stride = tensor.stride(1)};
}

}  // namespace

struct CoreAttention::State {
  /// What one layer keeps between its operations. Index i of a vector belongs to receives[i] or
  /// sends[i].
  struct Layer {
    at::Tensor q, k, v;                    // local
    at::Tensor o, lse;                     // local: [T, H, E], [T, H, 1]
    at::Tensor d_o, delta;                 // local, backward
    at::Tensor dq, dk, dv;                 // local accumulators, backward
    std::vector<Block> received;           // Q, K, V of others
    std::vector<Block> returned;           // O, LSE for others
    std::vector<Block> received_backward;  // dO, LSE, delta of others
    std::vector<Block> accumulators;       // dQ, dK, dV for others
  };

  RankExchange exchange;
  CoreAttentionOptions options;
  Communicator& comm;
  at::ScalarType type;         // compute
  at::ScalarType accumulator;  // fp64 for fp64, else fp32
  std::vector<Layer> layers;
  ExchangeBytes bytes;

  State(RankExchange exchange_in, const CoreAttentionOptions& options_in, Communicator& comm_in)
      : exchange(std::move(exchange_in)),
        options(options_in),
        comm(comm_in),
        type(aten_type(options.dtype)),
        accumulator(type == at::kDouble ? at::kDouble : at::kFloat),
        layers(options.num_layers) {}

  at::Device device() const {
    return comm.cuda_device() < 0 ? at::Device(at::kCPU)
                                  : at::Device(at::kCUDA, comm.cuda_device());
  }

  uint32_t tag(int layer, int phase) const {
    const int64_t index = (int64_t(options.nano_batch) * options.num_layers + layer) * 4 + phase;
    DISTCA_CHECK_LT(index, int64_t(kExchangeTags));
    return static_cast<uint32_t>(index);
  }

  // The four kinds of message.
  Block qkv_block(const PeerTransfer& t) const {
    const kernels::Shape& s = options.shape;
    return make_block({{t.q_tokens, s.num_heads, s.head_dim_qk, type},
                       {t.kv_tokens, s.num_kv_heads, s.head_dim_qk, type},
                       {t.kv_tokens, s.num_kv_heads, s.head_dim_v, type}},
                      device());
  }
  Block o_block(const PeerTransfer& t) const {
    const kernels::Shape& s = options.shape;
    return make_block(
        {{t.q_tokens, s.num_heads, s.head_dim_v, type}, {t.q_tokens, s.num_heads, 1, accumulator}},
        device());
  }
  Block d_o_block(const PeerTransfer& t) const {
    const kernels::Shape& s = options.shape;
    return make_block({{t.q_tokens, s.num_heads, s.head_dim_v, type},
                       {t.q_tokens, s.num_heads, 1, accumulator},
                       {t.q_tokens, s.num_heads, 1, accumulator}},
                      device());
  }
  Block gradient_block(const PeerTransfer& t, at::ScalarType gradient_type) const {
    const kernels::Shape& s = options.shape;
    return make_block({{t.q_tokens, s.num_heads, s.head_dim_qk, gradient_type},
                       {t.kv_tokens, s.num_kv_heads, s.head_dim_qk, gradient_type},
                       {t.kv_tokens, s.num_kv_heads, s.head_dim_v, gradient_type}},
                      device());
  }
  at::ScalarType travel_type() const {
    return options.gradient_travel == CoreAttentionOptions::GradientTravel::kCompute ? type
                                                                                     : accumulator;
  }

  /// Copies local rows into a message part, in the order of `ranges`.
  void pack(const at::Tensor& local, const std::vector<RowRange>& ranges, at::Tensor& part) {
    int64_t row = 0;
    for (const RowRange& range : ranges) {
      part.narrow(0, row, range.tokens.size())
          .copy_(local.narrow(0, range.row, range.tokens.size()));
      row += range.tokens.size();
    }
    bytes.copied += part.numel() * static_cast<int64_t>(part.element_size());
  }
  void unpack(const at::Tensor& part, const std::vector<RowRange>& ranges, at::Tensor& local) {
    int64_t row = 0;
    for (const RowRange& range : ranges) {
      local.narrow(0, range.row, range.tokens.size())
          .copy_(part.narrow(0, row, range.tokens.size()));
      row += range.tokens.size();
    }
    bytes.copied += part.numel() * static_cast<int64_t>(part.element_size());
  }
  /// Adds a message part to local rows.
  void add(const at::Tensor& part, const std::vector<RowRange>& ranges, at::Tensor& local) {
    int64_t row = 0;
    for (const RowRange& range : ranges) {
      local.narrow(0, range.row, range.tokens.size())
          .add_(part.narrow(0, row, range.tokens.size()));
      row += range.tokens.size();
    }
    bytes.copied += part.numel() * static_cast<int64_t>(part.element_size());
  }

  void run_exchange(const std::vector<Message>& sends, const std::vector<Message>& receives,
                    std::string_view operation) {
    for (const Message& message : sends) bytes.sent += message.bytes;
    for (const Message& message : receives) bytes.received += message.bytes;
    if (!sends.empty() || !receives.empty()) comm.exchange(sends, receives, operation)->wait();
  }

  std::vector<kernels::KeyFragment> fragments(const Layer& layer, const ServerTask& task) const {
    std::vector<kernels::KeyFragment> keys;
    keys.reserve(task.kv.size());
    for (const BlockRows& rows : task.kv) {
      const at::Tensor& k = rows.block == 0 ? layer.k : layer.received[rows.block - 1].parts[1];
      const at::Tensor& v = rows.block == 0 ? layer.v : layer.received[rows.block - 1].parts[2];
      keys.push_back({.k = rows_of(k, rows.row),
                      .v = rows_of(v, rows.row),
                      .tokens = rows.tokens,
                      .position = rows.position});
    }
    return keys;
  }
};

CoreAttention::CoreAttention(RankExchange exchange, const CoreAttentionOptions& options,
                             Communicator& comm)
    : state_(std::make_unique<State>(std::move(exchange), options, comm)) {}
CoreAttention::~CoreAttention() = default;

void CoreAttention::enter(int layer_index, const at::Tensor& q, const at::Tensor& k,
                          const at::Tensor& v, std::string_view operation) {
  State& s = *state_;
  State::Layer& layer = s.layers[layer_index];
  DISTCA_CHECK_EQ(q.size(0), s.exchange.local_tokens);
  DISTCA_CHECK(q.scalar_type() == s.type, "q has another type than the exchange");
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

  std::vector<std::vector<kernels::KeyFragment>> keys;
  std::vector<kernels::ForwardTask> tasks;
  keys.reserve(s.exchange.tasks.size());
  for (const ServerTask& task : s.exchange.tasks) {
    const bool local = task.q.block == 0;
    const size_t from = static_cast<size_t>(task.q.block) - 1;
    keys.push_back(s.fragments(layer, task));
    tasks.push_back({.q = rows_of(local ? layer.q : layer.received[from].parts[0], task.q.row),
                     .o = rows_of(local ? layer.o : layer.returned[from].parts[0], task.q.row),
                     .lse = rows_of(local ? layer.lse : layer.returned[from].parts[1], task.q.row),
                     .q_tokens = task.q.tokens,
                     .q_position = task.q.position,
                     .keys = keys.back(),
                     .mask = {.causal = true, .window_left = s.options.window_left}});
  }
  aten_forward(shape, s.options.dtype, tasks, s.comm.cuda_device());
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
  layer.returned.clear();
  return layer.o;
}

void CoreAttention::enter_backward(int layer_index, const at::Tensor& d_o,
                                   std::string_view operation) {
  State& s = *state_;
  State::Layer& layer = s.layers[layer_index];
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
    const bool local = task.q.block == 0;
    const size_t from = static_cast<size_t>(task.q.block) - 1;
    keys.push_back(s.fragments(layer, task));
    std::vector<kernels::KeyGradient>& task_gradients = gradients.emplace_back();
    for (const BlockRows& rows : task.kv) {
      const bool home = rows.block == 0;
      const size_t source = static_cast<size_t>(rows.block) - 1;
      task_gradients.push_back(
          {.dk = rows_of(home ? layer.dk : layer.accumulators[source].parts[1], rows.row),
           .dv = rows_of(home ? layer.dv : layer.accumulators[source].parts[2], rows.row)});
    }
    tasks.push_back(
        {.q = rows_of(local ? layer.q : layer.received[from].parts[0], task.q.row),
         .d_o = rows_of(local ? layer.d_o : layer.received_backward[from].parts[0], task.q.row),
         .lse = rows_of(local ? layer.lse : layer.received_backward[from].parts[1], task.q.row),
         .delta = rows_of(local ? layer.delta : layer.received_backward[from].parts[2], task.q.row),
         .dq = rows_of(local ? layer.dq : layer.accumulators[from].parts[0], task.q.row),
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

void CoreAttention::drop(int layer) { state_->layers[layer] = {}; }

const ExchangeBytes& CoreAttention::bytes() const { return state_->bytes; }

}  // namespace distca
