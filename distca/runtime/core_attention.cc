#include "distca/runtime/core_attention.h"

#include <ATen/ATen.h>

#include <array>
#include <map>
#include <utility>
#include <vector>

#include "distca/base/error.h"
#include "distca/comm/aten_types.h"
#include "distca/comm/tags.h"
#include "distca/kernels/rows.h"
#include "distca/runtime/aten_merge.h"
#include "distca/runtime/attention_messages.h"
#include "distca/runtime/block_tasks.h"

namespace distca {

struct CoreAttention::State {
  /// What is still missing of the home rows' results of a pass.
  struct Home {
    size_t tasks_done = 0;
    bool landed = false;
    bool complete = false;
  };
  /// What one layer keeps between its operations. Index i of a vector belongs to receives[i] or
  /// sends[i].
  struct Layer {
    at::Tensor q, k, v;                    // local
    at::Tensor o, lse;                     // local: [T, H, E], [T, H, 1]
    at::Tensor d_o, delta;                 // local, backward
    at::Tensor dq, dk, dv;                 // local accumulators, backward
    std::vector<Block> received;           // Q, K, V of others
    std::vector<Block> returned;           // O, LSE for others
    std::vector<Block> arrived;            // O, LSE that came home
    std::vector<at::Tensor> partials;      // [2 x tasks] O, LSE of those that are partial
    std::vector<Block> received_backward;  // dO, LSE, delta of others
    std::vector<Block> accumulators;       // dQ, dK, dV for others
    std::vector<Block> arrived_backward;   // dQ, dK, dV that came home
    int32_t returned_buffer = -1, accumulators_buffer = -1;
    std::array<Home, 2> home;  // [pass]
  };

  RankExchange exchange;
  CoreAttentionOptions options;
  AttentionKernel& kernel;
  Communicator& comm;
  const ExchangeBuffers& buffers;
  kernels::Shape shape;
  ScalarType type;                            // compute
  ScalarType accumulator;                     // fp64 for fp64, else fp32
  std::array<std::vector<int32_t>, 4> tasks;  // [task set] indices into exchange.tasks
  AttentionMessages messages;
  std::vector<Range> merged;  // local rows that merges write, ascending
  std::vector<Layer> layers;
  std::map<uint32_t, std::unique_ptr<PendingExchange>> pending;  // [tag]
  ExchangeBytes bytes;

  State(RankExchange exchange_in, const CoreAttentionOptions& options_in,
        AttentionKernel& kernel_in, Communicator& comm_in, const ExchangeBuffers& buffers_in);

  bool gradients_travel_converted() const {
    return options.types.gradient != options.types.accumulator;
  }
  at::TensorOptions tensor_options(ScalarType scalar) const {
    return at::dtype(aten_type(scalar))
        .device(comm.cuda_device() < 0
                    ? at::Device(at::kCPU)
                    : at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(comm.cuda_device())));
  }
  void check_local(const char* name, const at::Tensor& tensor, int64_t heads, int64_t dim) const;
  void check_written(const Op& op, int32_t buffer) const;

  int32_t written_buffer(const Op& op, BufferRole role) const;
  kernels::TaskList forward_blocks(const Layer& layer, bool away) const;
  kernels::TaskList backward_blocks(const Layer& layer, bool away) const;
  void attend_forward(Layer& layer, const Op& op);
  void attend_backward(Layer& layer, const Op& op);
  void merge(const Layer& layer, const RowMerge& rows, const at::Tensor& o, const at::Tensor& lse);
  void zero_local_gradients(Layer& layer);
  void complete_home(Layer& layer, Pass pass);
};

CoreAttention::State::State(RankExchange exchange_in, const CoreAttentionOptions& options_in,
                            AttentionKernel& kernel_in, Communicator& comm_in,
                            const ExchangeBuffers& buffers_in)
    : exchange(std::move(exchange_in)),
      options(options_in),
      kernel(kernel_in),
      comm(comm_in),
      buffers(buffers_in),
      shape(kernel.shape()),
      type(kernel.type()),
      accumulator(kernels::accumulator_type(type)),
      messages(exchange, shape, options.types, buffers),
      layers(options.num_layers) {
  DISTCA_CHECK_EQ(kernel.cuda_device(), comm.cuda_device());
  DISTCA_CHECK_EQ(kernel.cuda_device(), buffers.cuda_device());
  DISTCA_CHECK(options.types.compute == type && options.types.accumulator == accumulator,
               "the kernel computes in {} and sums in {}", short_name(type),
               short_name(accumulator));
  for (const TaskSet set :
       {TaskSet::kAll, TaskSet::kHomeFirst, TaskSet::kAway, TaskSet::kHomeRest}) {
    tasks[static_cast<int>(set)] = task_set(exchange, set);
  }
  for (const RowMerge& merge : exchange.merges) {
    if (merge.block == 0) merged.push_back({merge.row, merge.row + merge.tokens});
  }
}

// --- exchanges ----------------------------------------------------------------------------------

/// Kernels read and write rows whose last dimension is contiguous.
void CoreAttention::State::check_local(const char* name, const at::Tensor& tensor, int64_t heads,
                                       int64_t dim) const {
  DISTCA_CHECK(tensor.scalar_type() == aten_type(type) && tensor.dim() == 3 &&
                   tensor.size(0) == exchange.local_tokens && tensor.size(1) == heads &&
                   tensor.size(2) == dim && (tensor.stride(2) == 1 || tensor.numel() == 0),
               "{}: expected [{}, {}, {}] of the exchange's type, last dimension contiguous", name,
               exchange.local_tokens, heads, dim);
}

/// What is sent is what the tasks wrote, where they wrote it.
void CoreAttention::State::check_written(const Op& op, int32_t buffer) const {
  DISTCA_CHECK(op.sends.empty() || op.out == buffer, "{}: sends buffer {}, its tasks wrote {}",
               describe(op), op.out, buffer);
}

void CoreAttention::set_qkv(int layer_index, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v) {
  State& s = *state_;
  const kernels::Shape& shape = s.shape;
  s.check_local("q", q, shape.num_heads, shape.head_dim_qk);
  s.check_local("k", k, shape.num_kv_heads, shape.head_dim_qk);
  s.check_local("v", v, shape.num_kv_heads, shape.head_dim_v);
  State::Layer& layer = s.layers[layer_index];
  layer = {};
  layer.q = q;
  layer.k = k;
  layer.v = v;
  const int64_t tokens = s.exchange.local_tokens;
  layer.o = at::empty({tokens, shape.num_heads, shape.head_dim_v}, s.tensor_options(s.type));
  layer.lse = at::empty({tokens, shape.num_heads, 1}, s.tensor_options(s.accumulator));
}

void CoreAttention::set_d_o(int layer_index, const at::Tensor& d_o) {
  State& s = *state_;
  s.check_local("d_o", d_o, s.shape.num_heads, s.shape.head_dim_v);
  State::Layer& layer = s.layers[layer_index];
  layer.d_o = d_o;
  const at::ScalarType sums = aten_type(s.accumulator);
  layer.delta = (d_o.to(sums) * o(layer_index).to(sums)).sum(-1, /*keepdim=*/true);
}

void CoreAttention::pack(const Op& op) {
  State& s = *state_;
  State::Layer& layer = s.layers[op.layer];
  const Content content = content_of(op);
  if (content == Content::kO) return s.check_written(op, layer.returned_buffer);
  if (content == Content::kGradient) {
    if (!s.gradients_travel_converted()) return s.check_written(op, layer.accumulators_buffer);
    const std::vector<Block> outgoing = s.messages.with_homes(content, op.out);
    for (size_t i = 0; i < outgoing.size(); ++i) {
      s.bytes.packed += convert(layer.accumulators[i], outgoing[i]);
    }
    return;
  }
  const bool qkv = content == Content::kQkv;
  const auto local =
      qkv ? std::array{layer.q, layer.k, layer.v} : std::array{layer.d_o, layer.lse, layer.delta};
  const std::vector<Block> outgoing = s.messages.with_servers(content, op.out);
  for (size_t i = 0; i < outgoing.size(); ++i) {
    const PeerTransfer& transfer = s.exchange.sends[i];
    for (int part = 0; part < 3; ++part) {
      const std::vector<RowRange>& ranges = qkv && part > 0 ? transfer.kv : transfer.q;
      s.bytes.packed += distca::pack(local[part], ranges, outgoing[i].part(part));
    }
  }
}

void CoreAttention::post(const Op& op) {
  State& s = *state_;
  State::Layer& layer = s.layers[op.layer];
  const Content content = content_of(op);
  s.messages.check(op);
  std::vector<Block>& incoming = content == Content::kQkv  ? layer.received
                                 : content == Content::kO  ? layer.arrived
                                 : content == Content::kDO ? layer.received_backward
                                                           : layer.arrived_backward;
  incoming = s.messages.incoming(op);
  DISTCA_CHECK_LT(op.tag, kExchangeTags);
  std::vector<Message> sends, receives;
  for (const auto& [peer, offset, size] : op.sends) {
    sends.push_back({peer, op.tag, s.buffers.data(op.out) + offset, size});
    s.bytes.sent += size;
  }
  for (const auto& [peer, offset, size] : op.receives) {
    receives.push_back({peer, op.tag, s.buffers.data(op.in) + offset, size});
    s.bytes.received += size;
  }
  // Without messages too: the group counts exchanges to see who is behind.
  auto posted = s.comm.exchange(sends, receives, describe(op));
  DISTCA_CHECK(s.pending.emplace(op.tag, std::move(posted)).second, "{}: its tag {} is in use",
               describe(op), op.tag);
}

void CoreAttention::wait(const Op& op) {
  const auto posted = state_->pending.find(op.tag);
  if (posted != state_->pending.end()) posted->second->wait_received();
}

void CoreAttention::wait_sent(const Op& op) {
  const auto posted = state_->pending.find(op.tag);
  if (posted == state_->pending.end()) return;
  posted->second->wait();
  state_->pending.erase(posted);
}

void CoreAttention::land(const Op& op) {
  if (op.kind != OpKind::kLeave) return;  // tasks read it where it lies
  State& s = *state_;
  State::Layer& layer = s.layers[op.layer];
  if (op.pass == Pass::kForward) {
    for (size_t i = 0; i < s.exchange.sends.size(); ++i) {
      const PeerTransfer& transfer = s.exchange.sends[i];
      s.bytes.unpacked += unpack(layer.arrived[i].part(0), transfer.q, layer.o, s.merged);
      s.bytes.unpacked += unpack(layer.arrived[i].part(1), transfer.q, layer.lse, s.merged);
    }
  }
  layer.home[static_cast<int>(op.pass)].landed = true;
  s.complete_home(layer, op.pass);
}

// --- tasks ---------------------------------------------------------------------------------------

void CoreAttention::attend(const Op& op) {
  State& s = *state_;
  State::Layer& layer = s.layers[op.layer];
  op.pass == Pass::kForward ? s.attend_forward(layer, op) : s.attend_backward(layer, op);
  layer.home[static_cast<int>(op.pass)].tasks_done += s.tasks[static_cast<int>(op.tasks)].size();
  s.complete_home(layer, op.pass);
}

/// The buffer of a role that the operation writes; -1: none.
int32_t CoreAttention::State::written_buffer(const Op& op, BufferRole role) const {
  for (const int32_t buffer : op.writes) {
    if (buffers.role(buffer) == role) return buffer;
  }
  return -1;
}

/// The blocks that the tasks of an operation name; `away`: what was received, too.
kernels::TaskList CoreAttention::State::forward_blocks(const Layer& layer, bool away) const {
  kernels::TaskList list;
  add_forward_block(list, layer.q, layer.k, layer.v, layer.o, layer.lse);
  for (size_t i = 0; away && i < layer.received.size(); ++i) {
    const Block &qkv = layer.received[i], &out = layer.returned[i];
    add_forward_block(list, qkv.part(0), qkv.part(1), qkv.part(2), out.part(0), out.part(1));
  }
  return list;
}

kernels::TaskList CoreAttention::State::backward_blocks(const Layer& layer, bool away) const {
  kernels::TaskList list;
  add_backward_block(list, layer.q, layer.k, layer.v, layer.d_o, layer.lse, layer.delta, layer.dq,
                     layer.dk, layer.dv);
  for (size_t i = 0; away && i < layer.received.size(); ++i) {
    const Block &qkv = layer.received[i], &d_o = layer.received_backward[i];
    const Block& sums = layer.accumulators[i];
    add_backward_block(list, qkv.part(0), qkv.part(1), qkv.part(2), d_o.part(0), d_o.part(1),
                       d_o.part(2), sums.part(0), sums.part(1), sums.part(2));
  }
  return list;
}

/// O and LSE of the operation's tasks: where they belong, or into partials (O of the accumulator's
/// type); then of received rows that several tasks share.
void CoreAttention::State::attend_forward(Layer& layer, const Op& op) {
  const bool away = op.tasks == TaskSet::kAll || op.tasks == TaskSet::kAway;
  if (away) {
    layer.returned_buffer = written_buffer(op, BufferRole::kOOut);
    layer.returned = messages.with_homes(Content::kO, layer.returned_buffer);
  }
  kernels::TaskList whole = forward_blocks(layer, away), partial{.keys = whole.keys};
  layer.partials.resize(2 * exchange.tasks.size());
  for (const int32_t i : tasks[static_cast<int>(op.tasks)]) {
    kernels::Task task = block_task(exchange.tasks[i], options.window_left);
    if (!exchange.tasks[i].partial) {
      whole.tasks.push_back(std::move(task));
      continue;
    }
    const auto rows = [&](int64_t dim) {
      return at::empty({task.q_tokens, shape.num_heads, dim}, tensor_options(accumulator));
    };
    at::Tensor &o = layer.partials[2 * i], &lse = layer.partials[2 * i + 1];
    o = rows(shape.head_dim_v), lse = rows(1);
    const kernels::Rows& q = whole.queries[task.query_buffer].q;
    partial.queries.push_back({.tokens = task.q_tokens,
                               .q = kernels::shifted(q, type, task.q_row, 0),
                               .o = rows_of(o),
                               .lse = rows_of(lse)});
    task.query_buffer = static_cast<int64_t>(partial.queries.size()) - 1;
    task.q_row = 0;
    partial.tasks.push_back(std::move(task));
  }
  bytes.copied += kernel.forward(type, whole);
  bytes.copied += kernel.forward(accumulator, partial);
  if (!away) return;
  for (const RowMerge& rows : exchange.merges) {
    if (rows.block == 0) continue;  // parts of it may be elsewhere
    const Block& block = layer.returned[rows.block - 1];
    merge(layer, rows, block.part(0), block.part(1));
  }
}

void CoreAttention::State::attend_backward(Layer& layer, const Op& op) {
  zero_local_gradients(layer);
  const bool away = op.tasks == TaskSet::kAll || op.tasks == TaskSet::kAway;
  if (away) {
    const BufferRole role =
        gradients_travel_converted() ? BufferRole::kAccumulators : BufferRole::kGradientOut;
    layer.accumulators_buffer = written_buffer(op, role);
    layer.accumulators = messages.with_homes(Content::kAccumulator, layer.accumulators_buffer);
    for (const Block& block : layer.accumulators) block.fill_with_zeros();
  }
  kernels::TaskList backward = backward_blocks(layer, away);
  for (const int32_t i : tasks[static_cast<int>(op.tasks)]) {
    backward.tasks.push_back(block_task(exchange.tasks[i], options.window_left));
  }
  bytes.copied += kernel.backward(backward);
}

/// Merges rows into O and LSE of their block.
void CoreAttention::State::merge(const Layer& layer, const RowMerge& rows, const at::Tensor& o,
                                 const at::Tensor& lse) {
  std::vector<kernels::Partial> parts;
  for (const MergePart& part : rows.parts) {
    const Block* block = part.arrived ? &layer.arrived[part.index] : nullptr;
    const at::Tensor& o_part = block ? block->part(0) : layer.partials[2 * part.index];
    const at::Tensor& lse_part = block ? block->part(1) : layer.partials[2 * part.index + 1];
    parts.push_back({.o = rows_of(o_part, part.row),
                     .o_type = part.arrived ? type : accumulator,
                     .lse = rows_of(lse_part, part.row)});
  }
  aten_merge({rows.tokens, shape.num_heads, shape.head_dim_v}, type, parts,
             {.o = rows_of(o, rows.row), .o_type = type, .lse = rows_of(lse, rows.row)},
             comm.cuda_device());
  bytes.copied += rows.tokens * shape.num_heads *
                  (shape.head_dim_v * element_bytes(type) + element_bytes(accumulator));
}

void CoreAttention::State::zero_local_gradients(Layer& layer) {
  if (!layer.q.defined() || layer.dq.defined()) return;
  const auto sums = tensor_options(accumulator);
  layer.dq = at::zeros(layer.q.sizes(), sums);
  layer.dk = at::zeros(layer.k.sizes(), sums);
  layer.dv = at::zeros(layer.v.sizes(), sums);
}

/// Once every task was computed and what others computed has landed: sums over both.
void CoreAttention::State::complete_home(Layer& layer, Pass pass) {
  Home& home = layer.home[static_cast<int>(pass)];
  const Content content = pass == Pass::kForward ? Content::kO : Content::kGradient;
  if (home.complete || home.tasks_done < exchange.tasks.size()) return;
  if (!home.landed && messages.any_with_servers(content)) return;
  home.complete = true;
  if (pass == Pass::kForward) {
    for (const RowMerge& rows : exchange.merges) {
      if (rows.block == 0) merge(layer, rows, layer.o, layer.lse);
    }
    layer.partials.clear();
    return;
  }
  // Local contributions first, then the servers in ascending rank: a fixed order of summation.
  zero_local_gradients(layer);  // unless a task has done so
  for (size_t i = 0; i < exchange.sends.size(); ++i) {
    const std::vector<Block>& arrived = layer.arrived_backward;
    bytes.unpacked += add(arrived[i].part(0), exchange.sends[i].q, layer.dq);
    bytes.unpacked += add(arrived[i].part(1), exchange.sends[i].kv, layer.dk);
    bytes.unpacked += add(arrived[i].part(2), exchange.sends[i].kv, layer.dv);
  }
}

// --- results -------------------------------------------------------------------------------------

const at::Tensor& CoreAttention::o(int layer_index) const {
  const State::Layer& layer = state_->layers[layer_index];
  DISTCA_CHECK(layer.home[static_cast<int>(Pass::kForward)].complete || layer.o.numel() == 0,
               "O of layer {} is not complete", layer_index);
  return layer.o;
}

void CoreAttention::take_gradients(int layer_index, at::Tensor* dq, at::Tensor* dk,
                                   at::Tensor* dv) {
  State& s = *state_;
  State::Layer& layer = s.layers[layer_index];
  s.zero_local_gradients(layer);
  DISTCA_CHECK(layer.home[static_cast<int>(Pass::kBackward)].complete || layer.q.numel() == 0,
               "gradients of layer {} are not complete", layer_index);
  const at::ScalarType compute = aten_type(s.type);
  *dq = layer.dq.to(compute);
  *dk = layer.dk.to(compute);
  *dv = layer.dv.to(compute);
  drop(layer_index);
}

void CoreAttention::drop(int layer) { state_->layers[layer] = {}; }

const ExchangeBytes& CoreAttention::bytes() const { return state_->bytes; }

CoreAttention::CoreAttention(RankExchange exchange, const CoreAttentionOptions& options,
                             AttentionKernel& kernel, Communicator& comm,
                             const ExchangeBuffers& buffers)
    : state_(std::make_unique<State>(std::move(exchange), options, kernel, comm, buffers)) {}
CoreAttention::~CoreAttention() = default;

}  // namespace distca
