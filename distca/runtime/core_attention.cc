#include "distca/runtime/core_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

#include "distca/base/error.h"
#include "distca/comm/aten_types.h"
#include "distca/comm/tags.h"
#include "distca/kernels/rows.h"
#include "distca/runtime/core_attention_state.h"

namespace distca {
CoreAttention::State::State(const Program& program_in, AttentionKernel& kernel_in,
                            Communicator& comm_in, const ExchangeBuffers& buffers_in)
    : program(program_in),
      kernel(kernel_in),
      comm(comm_in),
      buffers(buffers_in),
      shape(kernel.shape()),
      type(kernel.type()),
      accumulator(kernels::accumulator_type(type)) {
  DISTCA_CHECK_EQ(kernel.cuda_device(), comm.cuda_device());
  DISTCA_CHECK_EQ(kernel.cuda_device(), buffers.cuda_device());
  for (const auto& exchange : program.exchanges) {
    const AttentionShape& of = exchange->shape;
    DISTCA_CHECK(of.num_heads == shape.num_heads && of.num_kv_heads == shape.num_kv_heads &&
                     of.head_dim_qk == shape.head_dim_qk && of.head_dim_v == shape.head_dim_v,
                 "the kernel computes other heads than the exchange carries");
    DISTCA_CHECK(exchange->types.compute == type && exchange->types.accumulator == accumulator,
                 "the kernel computes in {} and sums in {}", short_name(type),
                 short_name(accumulator));
  }
  int nano_batches = 0;
  for (const Op& op : program.ops) {
    nano_batches = std::max(nano_batches, op.nano_batch + 1);
    num_layers = std::max(num_layers, op.layer + 1);
    num_layer_steps = std::max(num_layer_steps, op.layer_step + 1);
  }
  homes.resize(static_cast<size_t>(nano_batches) * num_layers);
  rounds.resize(2 * program.exchanges.size() * num_layer_steps);
  for (const auto& exchange : program.exchanges) {
    std::array<KernelTasks, kNumTaskSets>& of_exchange = tasks.emplace_back();
    for (size_t set = 0; set < kNumTaskSets; ++set) {
      of_exchange[set] = kernel_tasks(*exchange, static_cast<TaskSet>(set));
    }
  }
}

/// Of the operation's nano-batch and layer; without rows where this rank only serves.
HomeRows& CoreAttention::State::home_of(const Op& op) {
  HomeRows& home = op.nano_batch < 0 ? nowhere : this->home(op.nano_batch, op.layer);
  const int64_t tokens = home.q.defined() ? home.q.size(0) : 0;
  DISTCA_CHECK(tokens == exchange_of(op).rows.local_tokens, "{}: {} local tokens, its plan has {}",
               describe(op), tokens, exchange_of(op).rows.local_tokens);
  return home;
}

// --- exchanges ----------------------------------------------------------------------------------

/// Kernels read and write rows whose last dimension is contiguous.
void CoreAttention::State::check_local(const char* name, const at::Tensor& tensor, int64_t heads,
                                       int64_t dim) const {
  DISTCA_CHECK(tensor.scalar_type() == aten_type(type) && tensor.dim() == 3 &&
                   tensor.size(1) == heads && tensor.size(2) == dim &&
                   (tensor.stride(2) == 1 || tensor.numel() == 0),
               "{}: expected [tokens, {}, {}] of the kernel's type, last dimension contiguous",
               name, heads, dim);
}

std::vector<MessageRows> CoreAttention::State::with_servers(const Op& op, Content content,
                                                            int32_t buffer) const {
  const AttentionExchange& exchange = exchange_of(op);
  return messages(exchange, content, exchange.rows.sends, exchange.servers(content), buffer);
}
std::vector<MessageRows> CoreAttention::State::with_homes(const Op& op, Content content,
                                                          int32_t buffer) const {
  const AttentionExchange& exchange = exchange_of(op);
  return messages(exchange, content, exchange.rows.receives, exchange.homes(content), buffer);
}

std::vector<MessageRows> CoreAttention::State::messages(const AttentionExchange& exchange,
                                                        Content content,
                                                        const std::vector<PeerTransfer>& transfers,
                                                        const MessageList& list,
                                                        int32_t buffer) const {
  const int64_t size = buffer < 0 ? 0 : buffers.bytes(buffer);
  DISTCA_CHECK(list.buffer_bytes <= size, "messages of {} bytes in buffer {}, which has {}",
               list.buffer_bytes, buffer, size);
  std::vector<MessageRows> result;
  result.reserve(transfers.size());
  for (const PeerTransfer& transfer : transfers) {
    const PeerMessage* const message = list.with(transfer.peer);
    result.emplace_back(message == nullptr ? nullptr : buffers.data(buffer) + message->offset,
                        message_parts(content, transfer, exchange.shape, exchange.types),
                        buffers.cuda_device());
  }
  return result;
}

/// The buffer of a role among those that an operation uses; -1: none.
int32_t CoreAttention::State::buffer_of(const std::vector<int32_t>& used, BufferRole role) const {
  for (const int32_t buffer : used) {
    if (buffers.role(buffer) == role) return buffer;
  }
  return -1;
}

void CoreAttention::set_qkv(int nano_batch, int layer, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v) {
  State& s = *state_;
  const kernels::Shape& shape = s.shape;
  s.check_local("q", q, shape.num_heads, shape.head_dim_qk);
  s.check_local("k", k, shape.num_kv_heads, shape.head_dim_qk);
  s.check_local("v", v, shape.num_kv_heads, shape.head_dim_v);
  const int64_t tokens = q.size(0);
  s.home(nano_batch, layer) = {
      .q = q,
      .k = k,
      .v = v,
      .o = at::empty({tokens, shape.num_heads, shape.head_dim_v}, s.tensor_options(s.type)),
      .lse = at::empty({tokens, shape.num_heads, 1}, s.tensor_options(s.accumulator))};
}

void CoreAttention::set_d_o(int nano_batch, int layer, const at::Tensor& d_o) {
  State& s = *state_;
  s.check_local("d_o", d_o, s.shape.num_heads, s.shape.head_dim_v);
  const at::ScalarType sums = aten_type(s.accumulator);
  HomeRows& home = s.home(nano_batch, layer);
  home.d_o = d_o;
  home.delta = (d_o.to(sums) * o(nano_batch, layer).to(sums)).sum(-1, /*keepdim=*/true);
}

void CoreAttention::pack(const Op& op) {
  State& s = *state_;
  const Content content = content_of(op);
  if (content == Content::kO) return;  // tasks have written it where it is sent from
  if (content == Content::kGradient) {
    const int32_t summed = s.buffer_of(op.reads, BufferRole::kAccumulators);
    if (summed < 0) return;  // likewise
    const std::vector<MessageRows> sums = s.with_homes(op, Content::kAccumulator, summed);
    const std::vector<MessageRows> outgoing = s.with_homes(op, content, op.out);
    for (size_t i = 0; i < outgoing.size(); ++i) s.bytes.packed += convert(sums[i], outgoing[i]);
    return;
  }
  const HomeRows& home = s.home_of(op);
  const bool qkv = content == Content::kQkv;
  const auto local =
      qkv ? std::array{home.q, home.k, home.v} : std::array{home.d_o, home.lse, home.delta};
  const std::vector<MessageRows> outgoing = s.with_servers(op, content, op.out);
  for (size_t i = 0; i < outgoing.size(); ++i) {
    const PeerTransfer& transfer = s.exchange_of(op).rows.sends[i];
    for (int part = 0; part < 3; ++part) {
      const std::vector<RowRange>& ranges = qkv && part > 0 ? transfer.kv : transfer.q;
      s.bytes.packed += distca::pack(local[part], ranges, outgoing[i].part(part));
    }
  }
}

void CoreAttention::issue(const Op& op) {
  State& s = *state_;
  DISTCA_CHECK_LT(op.tag, kExchangeTags);
  const auto messages_of = [&](const MessageList& list, int32_t buffer) {
    std::vector<Message> messages;
    messages.reserve(list.messages.size());
    for (const auto& [peer, offset, size] : list.messages) {
      messages.push_back({peer, op.tag, s.buffers.data(buffer) + offset, size});
    }
    return messages;
  };
  const MessageList &sends = s.program.sends(op), &receives = s.program.receives(op);
  if (sends.empty() && receives.empty()) return;
  s.bytes.sent += sends.bytes;
  s.bytes.received += receives.bytes;
  auto issued =
      s.comm.exchange(messages_of(sends, op.out), messages_of(receives, op.in), describe(op));
  DISTCA_CHECK(s.pending.emplace(op.tag, std::move(issued)).second, "{}: its tag {} is in use",
               describe(op), op.tag);
}

void CoreAttention::wait(const Op& op) {
  const auto issued = state_->pending.find(op.tag);
  if (issued != state_->pending.end()) issued->second->wait_received();
}

void CoreAttention::wait_sent(const Op& op) {
  const auto issued = state_->pending.find(op.tag);
  if (issued == state_->pending.end()) return;
  issued->second->wait();
  state_->pending.erase(issued);
}

void CoreAttention::land(const Op& op) {
  State& s = *state_;
  // Tasks read what entered where it lies.
  if (op.kind != OpKind::kCombine || s.program.receives(op).empty()) return;
  HomeRows& home = s.home_of(op);
  const AttentionExchange& exchange = s.exchange_of(op);
  if (op.pass == Pass::kForward) {
    std::vector<Range> merged;  // rows that merges write, ascending
    for (const RowMerge& merge : exchange.rows.merges) {
      if (merge.buffer == 0) merged.push_back({merge.row, merge.row + merge.tokens});
    }
    const std::vector<MessageRows> arrived = s.with_servers(op, Content::kO, op.in);
    for (size_t i = 0; i < arrived.size(); ++i) {
      const std::vector<RowRange>& rows = exchange.rows.sends[i].q;
      s.bytes.unpacked += unpack(arrived[i].part(0), rows, home.o, merged);
      s.bytes.unpacked += unpack(arrived[i].part(1), rows, home.lse, merged);
    }
  }
  Round& round = s.round_of(op);
  round.landed = true;
  round.arrived = op.in;
  s.complete_if_done(home, op);
}

// --- results -------------------------------------------------------------------------------------

const at::Tensor& CoreAttention::o(int nano_batch, int layer) const {
  const HomeRows& home = state_->home(nano_batch, layer);
  DISTCA_CHECK(home.complete[static_cast<size_t>(Pass::kForward)] || home.o.numel() == 0,
               "O of layer {} of nano-batch {} is not complete", layer, nano_batch);
  return home.o;
}

void CoreAttention::take_gradients(int nano_batch, int layer, at::Tensor* dq, at::Tensor* dk,
                                   at::Tensor* dv) {
  State& s = *state_;
  HomeRows& home = s.home(nano_batch, layer);
  s.zero_local_gradients(home);
  DISTCA_CHECK(home.complete[static_cast<size_t>(Pass::kBackward)] || home.q.numel() == 0,
               "gradients of layer {} of nano-batch {} are not complete", layer, nano_batch);
  const at::ScalarType compute = aten_type(s.type);
  *dq = home.dq.to(compute);
  *dk = home.dk.to(compute);
  *dv = home.dv.to(compute);
  drop(nano_batch, layer);
}

void CoreAttention::drop(int nano_batch, int layer) { state_->home(nano_batch, layer) = {}; }

const ExchangeBytes& CoreAttention::bytes() const { return state_->bytes; }

CoreAttention::CoreAttention(const Program& program, AttentionKernel& kernel, Communicator& comm,
                             const ExchangeBuffers& buffers)
    : state_(std::make_unique<State>(program, kernel, comm, buffers)) {}
CoreAttention::~CoreAttention() = default;

}  // namespace distca
