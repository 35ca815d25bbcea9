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
/// every part begins at a multiple of 16 bytes.
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

/// Where a task's rows lie: in the local tensor, or in a part of the block they came in.
Rows resolve(const at::Tensor& local, const std::vector<Block>& blocks, int part,
             const BlockRows& rows) {
  return rows_of(rows.block == 0 ? local : blocks[rows.block - 1].parts[part], rows.row);
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

  /// Calls `move(rows of local, rows of part)` for each range, and counts the part's bytes as
  /// copied.
  template <typename Move>
  void for_ranges(const at::Tensor& local, const std::vector<RowRange>& ranges,
                  const at::Tensor& part, const Move& move) {
    int64_t row = 0;
    for (const RowRange& range : ranges) {
      const int64_t tokens = range.tokens.size();
      move(local.narrow(0, range.row, tokens), part.narrow(0, row, tokens));
      row += tokens;
    }
    bytes.copied += part.numel() * static_cast<int64_t>(part.element_size());
  }
  /// Copies local rows into a message part, in the order of `ranges`.
  void pack(const at::Tensor& local, const std::vector<RowRange>& ranges, const at::Tensor& part) {
    for_ranges(local, ranges, part,
               [](const at::Tensor& home, const at::Tensor& message) { message.copy_(home); });
  }
  void unpack(const at::Tensor& part, const std::vector<RowRange>& ranges,
              const at::Tensor& local) {
    for_ranges(local, ranges, part,
               [](const at::Tensor& home, const at::Tensor& message) { home.copy_(message); });
  }
  /// Adds a message part to local rows.
  void add(const at::Tensor& part, const std::vector<RowRange>& ranges, const at::Tensor& local) {
    for_ranges(local, ranges, part,
               [](const at::Tensor& home, const at::Tensor& message) { home.add_(message); });
  }

  /// Kernels read and write rows whose last dimension is contiguous.
  void check_local(const char* name, const at::Tensor& tensor, int64_t heads, int64_t dim) const {
    DISTCA_CHECK(tensor.scalar_type() == type && tensor.dim() == 3 &&
                     tensor.size(0) == exchange.local_tokens && tensor.size(1) == heads &&
                     tensor.size(2) == dim && (tensor.stride(2) == 1 || tensor.numel() == 0),
                 "{}: expected [{}, {}, {}] of the exchange's type, last dimension contiguous",
                 name, exchange.local_tokens, heads, dim);
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
      keys.push_back({.k = resolve(layer.k, layer.received, 1, rows),
                      .v = resolve(layer.v, layer.received, 2, rows),
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

  std::vector<std::vector<kernels::KeyFragment>> keys;
  std::vector<kernels::ForwardTask> tasks;
  keys.reserve(s.exchange.tasks.size());
  for (const ServerTask& task : s.exchange.tasks) {
    keys.push_back(s.fragments(layer, task));
    tasks.push_back({.q = resolve(layer.q, layer.received, 0, task.q),
                     .o = resolve(layer.o, layer.returned, 0, task.q),
                     .lse = resolve(layer.lse, layer.returned, 1, task.q),
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

void CoreAttention::drop(int layer) { state_->layers[layer] = {}; }

const ExchangeBytes& CoreAttention::bytes() const { return state_->bytes; }

}  // namespace distca
