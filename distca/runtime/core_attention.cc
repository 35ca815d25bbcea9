#include "distca/runtime/core_attention.h"

#include <ATen/ATen.h>

#include <vector>

#include "distca/base/error.h"
#include "distca/comm/aten_types.h"
#include "distca/comm/tags.h"
#include "distca/kernels/rows.h"
#include "distca/runtime/aten_merge.h"
#include "distca/runtime/exchange_block.h"

namespace distca {
namespace {

using kernels::Rows;

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
  return rows_of(rows.block == 0 ? local : blocks[rows.block - 1].part(part), rows.row);
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
    std::vector<at::Tensor> partials;      // [2 x tasks] O, LSE of those that are partial
    std::vector<Block> received_backward;  // dO, LSE, delta of others
    std::vector<Block> accumulators;       // dQ, dK, dV for others
  };

  RankExchange exchange;
  CoreAttentionOptions options;
  AttentionKernel& kernel;
  Communicator& comm;
  kernels::Shape shape;
  ScalarType type;            // compute
  ScalarType accumulator;     // fp64 for fp64, else fp32
  std::vector<Range> merged;  // local rows that merges write, ascending
  std::vector<Layer> layers;
  ExchangeBytes bytes;

  State(RankExchange exchange_in, const CoreAttentionOptions& options_in,
        AttentionKernel& kernel_in, Communicator& comm_in)
      : exchange(std::move(exchange_in)),
        options(options_in),
        kernel(kernel_in),
        comm(comm_in),
        shape(kernel.shape()),
        type(kernel.type()),
        accumulator(kernels::accumulator_type(type)),
        layers(options.num_layers) {
    DISTCA_CHECK_EQ(kernel.cuda_device(), comm.cuda_device());
    for (const RowMerge& merge : exchange.merges) {
      if (merge.block == 0) merged.push_back({merge.row, merge.row + merge.tokens});
    }
  }

  at::TensorOptions tensor_options(ScalarType scalar) const {
    return at::dtype(aten_type(scalar))
        .device(comm.cuda_device() < 0 ? at::Device(at::kCPU)
                                       : at::Device(at::kCUDA, comm.cuda_device()));
  }

  uint32_t tag(int layer, int phase) const {
    const int64_t index = (int64_t(options.nano_batch) * options.num_layers + layer) * 4 + phase;
    DISTCA_CHECK_LT(index, int64_t(kExchangeTags));
    return static_cast<uint32_t>(index);
  }

  // The four kinds of message.
  Block qkv_block(const PeerTransfer& t) const { return gradient_block(t, type); }
  Block o_block(const PeerTransfer& t) const {
    const kernels::Shape& s = shape;
    return {
        {{t.q_tokens, s.num_heads, s.head_dim_v, type}, {t.q_tokens, s.num_heads, 1, accumulator}},
        comm.cuda_device()};
  }
  Block d_o_block(const PeerTransfer& t) const {
    const kernels::Shape& s = shape;
    return {{{t.q_tokens, s.num_heads, s.head_dim_v, type},
             {t.q_tokens, s.num_heads, 1, accumulator},
             {t.q_tokens, s.num_heads, 1, accumulator}},
            comm.cuda_device()};
  }
  Block gradient_block(const PeerTransfer& t, ScalarType gradient_type) const {
    const kernels::Shape& s = shape;
    return {{{t.q_tokens, s.num_heads, s.head_dim_qk, gradient_type},
             {t.kv_tokens, s.num_kv_heads, s.head_dim_qk, gradient_type},
             {t.kv_tokens, s.num_kv_heads, s.head_dim_v, gradient_type}},
            comm.cuda_device()};
  }
  ScalarType travel_type() const {
    return options.gradient_travel == CoreAttentionOptions::GradientTravel::kCompute ? type
                                                                                     : accumulator;
  }

  /// Kernels read and write rows whose last dimension is contiguous.
  void check_local(const char* name, const at::Tensor& tensor, int64_t heads, int64_t dim) const {
    DISTCA_CHECK(tensor.scalar_type() == aten_type(type) && tensor.dim() == 3 &&
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

  /// O and LSE of all tasks: where they belong, or into partials (O of the accumulator's type).
  void run_tasks(Layer& layer) {
    std::vector<std::vector<kernels::KeyFragment>> keys;
    std::vector<kernels::ForwardTask> whole, partial;
    keys.reserve(exchange.tasks.size());
    layer.partials.resize(2 * exchange.tasks.size());
    for (size_t i = 0; i < exchange.tasks.size(); ++i) {
      const ServerTask& task = exchange.tasks[i];
      keys.push_back(fragments(layer, task));
      kernels::ForwardTask forward{.q = resolve(layer.q, layer.received, 0, task.q),
                                   .q_tokens = task.q.tokens,
                                   .q_position = task.q.position,
                                   .keys = keys.back(),
                                   .mask = {.causal = true, .window_left = options.window_left}};
      if (task.partial) {
        const auto rows = [&](int64_t dim) {
          return at::empty({task.q.tokens, shape.num_heads, dim}, tensor_options(accumulator));
        };
        layer.partials[2 * i] = rows(shape.head_dim_v);
        layer.partials[2 * i + 1] = rows(1);
        forward.o = rows_of(layer.partials[2 * i], 0);
        forward.lse = rows_of(layer.partials[2 * i + 1], 0);
        partial.push_back(forward);
      } else {
        forward.o = resolve(layer.o, layer.returned, 0, task.q);
        forward.lse = resolve(layer.lse, layer.returned, 1, task.q);
        whole.push_back(forward);
      }
    }
    bytes.copied += kernel.forward(type, whole);
    bytes.copied += kernel.forward(accumulator, partial);
  }

  /// Merges rows into O and LSE of their block; `arrived`: what came home.
  void merge(const Layer& layer, const std::vector<Block>& arrived, const RowMerge& rows,
             const at::Tensor& o, const at::Tensor& lse) {
    std::vector<kernels::Partial> parts;
    for (const MergePart& part : rows.parts) {
      if (part.arrived) {
        const Block& block = arrived[part.index];
        parts.push_back({.o = rows_of(block.part(0), part.row),
                         .o_type = type,
                         .lse = rows_of(block.part(1), part.row)});
      } else {
        const at::Tensor* partial = &layer.partials[2 * part.index];
        parts.push_back({.o = rows_of(partial[0], part.row),
                         .o_type = accumulator,
                         .lse = rows_of(partial[1], part.row)});
      }
    }
    aten_merge({rows.tokens, shape.num_heads, shape.head_dim_v}, type, parts,
               {.o = rows_of(o, rows.row), .o_type = type, .lse = rows_of(lse, rows.row)},
               comm.cuda_device());
    bytes.copied += rows.tokens * shape.num_heads *
                    (shape.head_dim_v * element_bytes(type) + element_bytes(accumulator));
  }
};

CoreAttention::CoreAttention(RankExchange exchange, const CoreAttentionOptions& options,
                             AttentionKernel& kernel, Communicator& comm)
    : state_(std::make_unique<State>(std::move(exchange), options, kernel, comm)) {}
CoreAttention::~CoreAttention() = default;

void CoreAttention::enter(int layer_index, const at::Tensor& q, const at::Tensor& k,
                          const at::Tensor& v, std::string_view operation) {
  State& s = *state_;
  State::Layer& layer = s.layers[layer_index];
  const kernels::Shape& shape = s.shape;
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
    s.bytes.copied += pack(q, transfer.q, packed.back().part(0));
    s.bytes.copied += pack(k, transfer.kv, packed.back().part(1));
    s.bytes.copied += pack(v, transfer.kv, packed.back().part(2));
    sends.push_back(packed.back().message(transfer.peer, s.tag(layer_index, 0)));
  }
  for (const PeerTransfer& transfer : s.exchange.receives) {
    layer.received.push_back(s.qkv_block(transfer));
    receives.push_back(layer.received.back().message(transfer.peer, s.tag(layer_index, 0)));
  }
  s.run_exchange(sends, receives, operation);
}

void CoreAttention::attend(int layer_index) {
  State& s = *state_;
  State::Layer& layer = s.layers[layer_index];
  const kernels::Shape& shape = s.shape;
  const int64_t tokens = s.exchange.local_tokens;
  layer.o = at::empty({tokens, shape.num_heads, shape.head_dim_v}, s.tensor_options(s.type));
  layer.lse = at::empty({tokens, shape.num_heads, 1}, s.tensor_options(s.accumulator));
  for (const PeerTransfer& transfer : s.exchange.receives)
    layer.returned.push_back(s.o_block(transfer));

  s.run_tasks(layer);
  for (const RowMerge& rows : s.exchange.merges) {
    if (rows.block == 0) continue;  // in leave: parts of it may be elsewhere
    const Block& block = layer.returned[rows.block - 1];
    s.merge(layer, {}, rows, block.part(0), block.part(1));
  }
}

at::Tensor CoreAttention::leave(int layer_index, std::string_view operation) {
  State& s = *state_;
  State::Layer& layer = s.layers[layer_index];
  std::vector<Block> arrived;
  std::vector<Message> sends, receives;
  for (size_t i = 0; i < s.exchange.receives.size(); ++i) {
    if (s.exchange.receives[i].q_tokens == 0) continue;  // gave keys only
    sends.push_back(layer.returned[i].message(s.exchange.receives[i].peer, s.tag(layer_index, 1)));
  }
  for (const PeerTransfer& transfer : s.exchange.sends) {
    arrived.push_back(s.o_block(transfer));
    if (transfer.q_tokens == 0) continue;
    receives.push_back(arrived.back().message(transfer.peer, s.tag(layer_index, 1)));
  }
  s.run_exchange(sends, receives, operation);
  for (size_t i = 0; i < arrived.size(); ++i) {
    s.bytes.copied += unpack(arrived[i].part(0), s.exchange.sends[i].q, layer.o, s.merged);
    s.bytes.copied += unpack(arrived[i].part(1), s.exchange.sends[i].q, layer.lse, s.merged);
  }
  for (const RowMerge& rows : s.exchange.merges) {
    if (rows.block == 0) s.merge(layer, arrived, rows, layer.o, layer.lse);
  }
  layer.returned.clear();
  layer.partials.clear();
  return layer.o;
}

void CoreAttention::enter_backward(int layer_index, const at::Tensor& d_o,
                                   std::string_view operation) {
  State& s = *state_;
  State::Layer& layer = s.layers[layer_index];
  s.check_local("d_o", d_o, s.shape.num_heads, s.shape.head_dim_v);
  layer.d_o = d_o;
  const at::ScalarType sum_type = aten_type(s.accumulator);
  layer.delta = (d_o.to(sum_type) * layer.o.to(sum_type)).sum(-1, /*keepdim=*/true);
  std::vector<Block> packed;
  std::vector<Message> sends, receives;
  for (const PeerTransfer& transfer : s.exchange.sends) {
    if (transfer.q_tokens == 0) continue;
    packed.push_back(s.d_o_block(transfer));
    s.bytes.copied += pack(d_o, transfer.q, packed.back().part(0));
    s.bytes.copied += pack(layer.lse, transfer.q, packed.back().part(1));
    s.bytes.copied += pack(layer.delta, transfer.q, packed.back().part(2));
    sends.push_back(packed.back().message(transfer.peer, s.tag(layer_index, 2)));
  }
  for (const PeerTransfer& transfer : s.exchange.receives) {
    layer.received_backward.push_back(s.d_o_block(transfer));
    if (transfer.q_tokens == 0) continue;
    receives.push_back(
        layer.received_backward.back().message(transfer.peer, s.tag(layer_index, 2)));
  }
  s.run_exchange(sends, receives, operation);
}

void CoreAttention::attend_backward(int layer_index) {
  State& s = *state_;
  State::Layer& layer = s.layers[layer_index];
  const auto options = s.tensor_options(s.accumulator);
  layer.dq = at::zeros(layer.q.sizes(), options);
  layer.dk = at::zeros(layer.k.sizes(), options);
  layer.dv = at::zeros(layer.v.sizes(), options);
  for (const PeerTransfer& transfer : s.exchange.receives) {
    layer.accumulators.push_back(s.gradient_block(transfer, s.accumulator));
    layer.accumulators.back().fill_with_zeros();
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
  s.bytes.copied += s.kernel.backward(tasks);
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
        outgoing.back().part(part).copy_(layer.accumulators[i].part(part));
      }
      s.bytes.copied += outgoing.back().bytes();
    }
    sends.push_back(outgoing.back().message(transfer.peer, s.tag(layer_index, 3)));
  }
  for (const PeerTransfer& transfer : s.exchange.sends) {
    arrived.push_back(s.gradient_block(transfer, s.travel_type()));
    receives.push_back(arrived.back().message(transfer.peer, s.tag(layer_index, 3)));
  }
  s.run_exchange(sends, receives, operation);
  // Local contributions first, then the servers in ascending rank: a fixed order of summation.
  for (size_t i = 0; i < arrived.size(); ++i) {
    s.bytes.copied += add(arrived[i].part(0), s.exchange.sends[i].q, layer.dq);
    s.bytes.copied += add(arrived[i].part(1), s.exchange.sends[i].kv, layer.dk);
    s.bytes.copied += add(arrived[i].part(2), s.exchange.sends[i].kv, layer.dv);
  }
  *dq = layer.dq.to(aten_type(s.type));
  *dk = layer.dk.to(aten_type(s.type));
  *dv = layer.dv.to(aten_type(s.type));
  drop(layer_index);
}

void CoreAttention::drop(int layer) { state_->layers[layer] = {}; }

const ExchangeBytes& CoreAttention::bytes() const { return state_->bytes; }

}  // namespace distca
