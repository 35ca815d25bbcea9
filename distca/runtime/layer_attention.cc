// Rows of a layer between local tensors, messages and the group; the tasks are in
// layer_attention_tasks.cc.

#include <ATen/ATen.h>

#include <tuple>
#include <utility>

#include "distca/base/error.h"
#include "distca/comm/as_on_device.h"
#include "distca/comm/aten_types.h"
#include "distca/kernels/rows.h"
#include "distca/runtime/layer_attention.h"
#include "distca/runtime/tensor_rows.h"

namespace distca {
namespace {

// [Content] The buffer that messages are sent from, and the one that they are received into.
constexpr std::array kSentFrom{BufferRole::kQkvOut, BufferRole::kOOut, BufferRole::kDOOut,
                               BufferRole::kGradientOut};
constexpr std::array kReceivedInto{BufferRole::kQkvIn, BufferRole::kOIn, BufferRole::kDOIn,
                                   BufferRole::kGradientIn};

/// Pieces of `flat`, one after another, in the sizes of Q, K and V.
QkvGradients pieces_like(const HomeRows& home, const at::Tensor& flat) {
  const auto sizes = [](const at::Tensor& tensor) {
    return std::array<int64_t, 3>{tensor.size(0), tensor.size(1), tensor.size(2)};
  };
  const int64_t of_q = home.q.numel(), of_k = home.k.numel();
  return {piece_of(flat, 0, sizes(home.q)), piece_of(flat, of_q, sizes(home.k)),
          piece_of(flat, of_q + of_k, sizes(home.v))};
}

}  // namespace

BufferRole sent_from(Content content) { return kSentFrom.at(static_cast<size_t>(content)); }
BufferRole received_into(Content content) { return kReceivedInto.at(static_cast<size_t>(content)); }

LayerAttention::LayerAttention(AttentionKernel& kernel, Communicator& comm,
                               const TensorPlace& tensor)
    : kernel_(kernel),
      comm_(comm),
      tensor_(tensor),
      shape_(kernel.shape()),
      type_(kernel.type()),
      accumulator_(kernels::accumulator_type(type_)) {
  DISTCA_CHECK_EQ(kernel.cuda_device(), comm.cuda_device());
}

void LayerAttention::check(const AttentionExchange& exchange) const {
  const AttentionShape& of = exchange.shape;
  DISTCA_CHECK(of.num_heads == shape_.num_heads && of.num_kv_heads == shape_.num_kv_heads &&
                   of.head_dim_qk == shape_.head_dim_qk && of.head_dim_v == shape_.head_dim_v,
               "the kernel computes other heads than the exchange carries");
  DISTCA_CHECK(exchange.types.compute == type_ && exchange.types.accumulator == accumulator_,
               "the kernel computes in {} and sums in {}", long_name(type_),
               long_name(accumulator_));
}

at::TensorOptions LayerAttention::tensor_options(ScalarType scalar) const {
  return at::dtype(aten_type(scalar)).device(aten_device(comm_.cuda_device()));
}

/// Kernels read and write rows whose last dimension is contiguous.
void LayerAttention::check_local(const char* name, const at::Tensor& tensor, int64_t heads,
                                 int64_t dim) const {
  DISTCA_CHECK(tensor.scalar_type() == aten_type(type_) && tensor.dim() == 3 &&
                   tensor.size(1) == heads && tensor.size(2) == dim &&
                   (tensor.stride(2) == 1 || tensor.numel() == 0),
               "{}: expected [tokens, {}, {}] of the kernel's type, last dimension contiguous",
               name, heads, dim);
}

HomeRows LayerAttention::home_of(const at::Tensor& q, const at::Tensor& k,
                                 const at::Tensor& v) const {
  const int64_t tokens = q.size(0);
  HomeRows home{
      .o = at::empty({tokens, shape_.num_heads, shape_.head_dim_v}, tensor_options(type_)),
      .lse = at::empty({tokens, shape_.num_heads, 1}, tensor_options(accumulator_))};
  set_qkv(home, q, k, v);
  return home;
}

void LayerAttention::set_qkv(HomeRows& home, const at::Tensor& q, const at::Tensor& k,
                             const at::Tensor& v) const {
  check_local("q", q, shape_.num_heads, shape_.head_dim_qk);
  check_local("k", k, shape_.num_kv_heads, shape_.head_dim_qk);
  check_local("v", v, shape_.num_kv_heads, shape_.head_dim_v);
  home.q = q;
  home.k = k;
  home.v = v;
}

void LayerAttention::set_d_o(HomeRows& home, const at::Tensor& d_o) const {
  check_local("d_o", d_o, shape_.num_heads, shape_.head_dim_v);
  const at::ScalarType sums = aten_type(accumulator_);
  home.d_o = d_o;
  // A product of two types is one of the wider type: on a device, a conversion less.
  const at::Tensor o = as_on_device(comm_.cuda_device()) ? home.o : home.o.to(sums);
  home.delta = (d_o.to(sums) * o).sum(-1, /*keepdim=*/true);
}

std::vector<MessageRows> LayerAttention::with_servers(const AttentionExchange& exchange,
                                                      Content content,
                                                      std::span<std::byte> memory) const {
  return messages(exchange, content, exchange.rows.sends, exchange.servers(content), memory);
}
std::vector<MessageRows> LayerAttention::with_homes(const AttentionExchange& exchange,
                                                    Content content,
                                                    std::span<std::byte> memory) const {
  return messages(exchange, content, exchange.rows.receives, exchange.homes(content), memory);
}

std::vector<MessageRows> LayerAttention::messages(const AttentionExchange& exchange,
                                                  Content content,
                                                  const std::vector<PeerTransfer>& transfers,
                                                  const MessageList& list,
                                                  std::span<std::byte> memory) const {
  DISTCA_CHECK(list.buffer_bytes <= static_cast<int64_t>(memory.size()),
               "messages of {} bytes in a buffer of {}", list.buffer_bytes, memory.size());
  std::vector<MessageRows> result;
  result.reserve(transfers.size());
  for (const PeerTransfer& transfer : transfers) {
    const PeerMessage* const message = list.with(transfer.peer);
    result.emplace_back(message == nullptr ? nullptr : memory.data() + message->offset,
                        message_parts(content, transfer, exchange.shape, exchange.types),
                        comm_.cuda_device());
  }
  return result;
}

void LayerAttention::pack(const LayerPass& layer, Content content) {
  const AttentionExchange& exchange = layer.exchange;
  if (content == Content::kO) return;  // tasks have written it where it is sent from
  RowMoves moves(comm_.cuda_device());
  if (content == Content::kGradient) {
    if (!exchange.converts_gradients()) return;  // likewise
    const std::vector<MessageRows> sums =
        with_homes(exchange, Content::kAccumulator, layer.of(BufferRole::kAccumulators));
    const std::vector<MessageRows> outgoing =
        with_homes(exchange, content, layer.of(BufferRole::kGradientOut));
    for (size_t i = 0; i < outgoing.size(); ++i)
      bytes_.packed += convert(sums[i], outgoing[i], moves);
    return moves.play();
  }
  const HomeRows& home = layer.home;
  const bool qkv = content == Content::kQkv;
  const auto local =
      qkv ? std::array{home.q, home.k, home.v} : std::array{home.d_o, home.lse, home.delta};
  const std::vector<MessageRows> outgoing =
      with_servers(exchange, content, layer.of(sent_from(content)));
  for (size_t i = 0; i < outgoing.size(); ++i) {
    const PeerTransfer& transfer = exchange.rows.sends[i];
    for (int part = 0; part < 3; ++part) {
      const std::vector<RowRange>& ranges = qkv && part > 0 ? transfer.kv : transfer.q;
      bytes_.packed += distca::pack(local[part], ranges, outgoing[i].part(part), moves);
    }
  }
  moves.play();
}

std::unique_ptr<PendingExchange> LayerAttention::issue(const LayerPass& layer, Content content,
                                                       uint32_t tag, std::string_view operation,
                                                       Directions directions) {
  const auto messages_of = [&](const MessageList& list, std::span<std::byte> memory,
                               int64_t& bytes) {
    std::vector<Message> messages;
    messages.reserve(list.messages.size());
    for (const auto& [peer, offset, size] : list.messages) {
      messages.push_back({tensor_.rank_of(peer), tag, memory.data() + offset, size});
    }
    bytes += list.bytes;
    return messages;
  };
  std::vector<Message> sends, receives;
  if (directions != Directions::kReceives) {
    sends = messages_of(layer.exchange.sent(content), layer.of(sent_from(content)), bytes_.sent);
  }
  if (directions != Directions::kSends) {
    receives = messages_of(layer.exchange.received(content), layer.of(received_into(content)),
                           bytes_.received);
  }
  if (sends.empty() && receives.empty()) return nullptr;
  return comm_.exchange(sends, receives, operation);
}

void LayerAttention::land(const LayerPass& layer) {
  const AttentionExchange& exchange = layer.exchange;
  const Content content = layer.pass == Pass::kForward ? Content::kO : Content::kGradient;
  if (exchange.received(content).empty()) return;
  layer.layer_state.arrived = layer.of(received_into(content));
  if (content == Content::kO) {
    std::vector<Range> merged;  // rows that merges write, ascending
    for (const RowMerge& merge : exchange.rows.merges) {
      if (merge.buffer == 0) merged.push_back({merge.row, merge.row + merge.tokens});
    }
    const std::vector<MessageRows> arrived =
        with_servers(exchange, content, layer.layer_state.arrived);
    RowMoves moves(comm_.cuda_device());
    for (size_t i = 0; i < arrived.size(); ++i) {
      const std::vector<RowRange>& rows = exchange.rows.sends[i].q;
      bytes_.unpacked += unpack(arrived[i].part(0), rows, layer.home.o, merged, moves);
      bytes_.unpacked += unpack(arrived[i].part(1), rows, layer.home.lse, merged, moves);
    }
    moves.play();
  }
  layer.layer_state.landed = true;
  complete_if_done(layer);
}

QkvGradients LayerAttention::take_gradients(HomeRows& home) const {
  zero_local_gradients(home);
  const at::ScalarType compute = aten_type(type_);
  if (home.sums.defined()) return pieces_like(home, home.sums.to(compute));
  return {home.dq.to(compute), home.dk.to(compute), home.dv.to(compute)};
}

/// Zeros, unless there are sums already; on a device, all of them in one piece of memory.
void LayerAttention::zero_local_gradients(HomeRows& home) const {
  if (!home.q.defined() || home.dq.defined()) return;
  const auto sums = tensor_options(accumulator_);
  if (!as_on_device(comm_.cuda_device())) {
    home.dq = at::zeros(home.q.sizes(), sums);
    home.dk = at::zeros(home.k.sizes(), sums);
    home.dv = at::zeros(home.v.sizes(), sums);
    return;
  }
  home.sums = at::zeros({home.q.numel() + home.k.numel() + home.v.numel()}, sums);
  std::tie(home.dq, home.dk, home.dv) = pieces_like(home, home.sums);
}

}  // namespace distca
