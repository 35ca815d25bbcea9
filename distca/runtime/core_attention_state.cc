#include "distca/runtime/core_attention_state.h"

#include <algorithm>

#include "distca/base/error.h"
#include "distca/comm/aten_types.h"
#include "distca/comm/tags.h"
#include "distca/runtime/aten_attention.h"

namespace distca {
namespace {

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

}  // namespace

Message to_message(const Block& block, int peer, uint32_t tag) {
  return {.peer = peer,
          .tag = tag,
          .data = static_cast<std::byte*>(block.bytes.data_ptr()),
          .bytes = block.bytes.numel()};
}

kernels::Rows rows_of(const at::Tensor& tensor, int64_t row) {
  const int64_t offset = row * tensor.stride(0) * static_cast<int64_t>(tensor.element_size());
  return {.data = static_cast<std::byte*>(tensor.data_ptr()) + offset,
          .token_stride = tensor.stride(0),
          .head_stride = tensor.stride(1)};
}

kernels::Rows resolve(const at::Tensor& local, const std::vector<Block>& blocks, int part,
                      const BlockRows& rows) {
  return rows_of(rows.block == 0 ? local : blocks[rows.block - 1].parts[part], rows.row);
}

CoreAttention::State::State(RankExchange exchange_in, const CoreAttentionOptions& options_in,
                            Communicator& comm_in)
    : exchange(std::move(exchange_in)),
      options(options_in),
      comm(comm_in),
      type(aten_type(options.dtype)),
      accumulator(type == at::kDouble ? at::kDouble : at::kFloat),
      layers(options.num_layers) {
  for (const RowMerge& merge : exchange.merges) {
    if (merge.block == 0) merged.push_back({merge.row, merge.row + merge.tokens});
  }
}

at::Device CoreAttention::State::device() const {
  return comm.cuda_device() < 0 ? at::Device(at::kCPU) : at::Device(at::kCUDA, comm.cuda_device());
}

uint32_t CoreAttention::State::tag(int layer, int phase) const {
  const int64_t index = (int64_t(options.nano_batch) * options.num_layers + layer) * 4 + phase;
  DISTCA_CHECK_LT(index, int64_t(kExchangeTags));
  return static_cast<uint32_t>(index);
}

Block CoreAttention::State::qkv_block(const PeerTransfer& t) const {
  const kernels::Shape& s = options.shape;
  return make_block({{t.q_tokens, s.num_heads, s.head_dim_qk, type},
                     {t.kv_tokens, s.num_kv_heads, s.head_dim_qk, type},
                     {t.kv_tokens, s.num_kv_heads, s.head_dim_v, type}},
                    device());
}

Block CoreAttention::State::o_block(const PeerTransfer& t) const {
  const kernels::Shape& s = options.shape;
  return make_block(
      {{t.q_tokens, s.num_heads, s.head_dim_v, type}, {t.q_tokens, s.num_heads, 1, accumulator}},
      device());
}

Block CoreAttention::State::d_o_block(const PeerTransfer& t) const {
  const kernels::Shape& s = options.shape;
  return make_block({{t.q_tokens, s.num_heads, s.head_dim_v, type},
                     {t.q_tokens, s.num_heads, 1, accumulator},
                     {t.q_tokens, s.num_heads, 1, accumulator}},
                    device());
}

Block CoreAttention::State::gradient_block(const PeerTransfer& t,
                                           at::ScalarType gradient_type) const {
  const kernels::Shape& s = options.shape;
  return make_block({{t.q_tokens, s.num_heads, s.head_dim_qk, gradient_type},
                     {t.kv_tokens, s.num_kv_heads, s.head_dim_qk, gradient_type},
                     {t.kv_tokens, s.num_kv_heads, s.head_dim_v, gradient_type}},
                    device());
}

at::ScalarType CoreAttention::State::travel_type() const {
  return options.gradient_travel == CoreAttentionOptions::GradientTravel::kCompute ? type
                                                                                   : accumulator;
}

void CoreAttention::State::pack(const at::Tensor& local, const std::vector<RowRange>& ranges,
                                const at::Tensor& part) {
  for_ranges(local, ranges, part,
             [](const at::Tensor& home, const at::Tensor& message) { message.copy_(home); });
}

void CoreAttention::State::unpack(const at::Tensor& part, const std::vector<RowRange>& ranges,
                                  const at::Tensor& local) {
  int64_t first = 0;  // of the range in the message
  for (const RowRange& range : ranges) {
    const int64_t end = range.row + range.tokens.size();
    auto skip = std::partition_point(merged.begin(), merged.end(),
                                     [&range](const Range& rows) { return rows.end <= range.row; });
    for (int64_t row = range.row; row < end; ++skip) {
      const bool skips = skip != merged.end() && skip->begin < end;
      const int64_t stop = skips ? std::max(skip->begin, row) : end;
      local.narrow(0, row, stop - row).copy_(part.narrow(0, first + row - range.row, stop - row));
      row = skips ? skip->end : end;
    }
    first += range.tokens.size();
  }
  bytes.copied += part.numel() * static_cast<int64_t>(part.element_size());
}

void CoreAttention::State::add(const at::Tensor& part, const std::vector<RowRange>& ranges,
                               const at::Tensor& local) {
  for_ranges(local, ranges, part,
             [](const at::Tensor& home, const at::Tensor& message) { home.add_(message); });
}

void CoreAttention::State::check_local(const char* name, const at::Tensor& tensor, int64_t heads,
                                       int64_t dim) const {
  DISTCA_CHECK(tensor.scalar_type() == type && tensor.dim() == 3 &&
                   tensor.size(0) == exchange.local_tokens && tensor.size(1) == heads &&
                   tensor.size(2) == dim && (tensor.stride(2) == 1 || tensor.numel() == 0),
               "{}: expected [{}, {}, {}] of the exchange's type, last dimension contiguous", name,
               exchange.local_tokens, heads, dim);
}

void CoreAttention::State::run_exchange(const std::vector<Message>& sends,
                                        const std::vector<Message>& receives,
                                        std::string_view operation) {
  for (const Message& message : sends) bytes.sent += message.bytes;
  for (const Message& message : receives) bytes.received += message.bytes;
  if (!sends.empty() || !receives.empty()) comm.exchange(sends, receives, operation)->wait();
}

std::vector<kernels::KeyFragment> CoreAttention::State::fragments(const Layer& layer,
                                                                  const ServerTask& task) const {
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

void CoreAttention::State::run_tasks(Layer& layer) {
  const kernels::Shape& shape = options.shape;
  std::vector<std::vector<kernels::KeyFragment>> keys;
  std::vector<kernels::ForwardTask> whole, partial;
  keys.reserve(exchange.tasks.size());
  layer.partials.resize(exchange.tasks.size());
  const auto of_accumulator = at::dtype(accumulator).device(device());
  for (size_t i = 0; i < exchange.tasks.size(); ++i) {
    const ServerTask& task = exchange.tasks[i];
    keys.push_back(fragments(layer, task));
    kernels::ForwardTask forward{.q = resolve(layer.q, layer.received, 0, task.q),
                                 .q_tokens = task.q.tokens,
                                 .q_position = task.q.position,
                                 .keys = keys.back(),
                                 .mask = {.causal = true, .window_left = options.window_left}};
    if (task.partial) {
      AtenPartial& result = layer.partials[i];
      result.o = at::empty({task.q.tokens, shape.num_heads, shape.head_dim_v}, of_accumulator);
      result.lse = at::empty({task.q.tokens, shape.num_heads, 1}, of_accumulator);
      forward.o = rows_of(result.o, 0);
      forward.lse = rows_of(result.lse, 0);
      partial.push_back(forward);
    } else {
      forward.o = resolve(layer.o, layer.returned, 0, task.q);
      forward.lse = resolve(layer.lse, layer.returned, 1, task.q);
      whole.push_back(forward);
    }
  }
  aten_forward(shape, options.dtype, whole, comm.cuda_device());
  aten_forward(shape, options.dtype, partial, comm.cuda_device(),
               accumulator == at::kDouble ? ScalarType::kFloat64 : ScalarType::kFloat32);
}

void CoreAttention::State::merge(const Layer& layer, const std::vector<Block>& arrived,
                                 const RowMerge& rows, const AtenPartial& block) {
  const auto rows_at = [&rows](const AtenPartial& all, int64_t row) {
    return AtenPartial{all.o.narrow(0, row, rows.tokens), all.lse.narrow(0, row, rows.tokens)};
  };
  std::vector<AtenPartial> parts;
  for (const MergePart& part : rows.parts) {
    const AtenPartial all =
        part.arrived ? AtenPartial{arrived[part.index].parts[0], arrived[part.index].parts[1]}
                     : layer.partials[part.index];
    parts.push_back(rows_at(all, part.row));
  }
  aten_merge(parts, rows_at(block, rows.row));
}

}  // namespace distca
