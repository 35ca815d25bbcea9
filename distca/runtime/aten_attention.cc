#include "distca/runtime/aten_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "distca/base/error.h"
#include "distca/base/integers.h"
#include "distca/comm/aten_types.h"
#include "distca/kernels/mask_blocks.h"
#include "distca/kernels/merge.h"
#include "distca/kernels/rows.h"
#include "distca/runtime/cuda_attention.h"

namespace distca {
namespace {

using kernels::BackwardTask;
using kernels::BlockKind;
using kernels::ForwardTask;
using kernels::KeyFragment;
using kernels::KeyGradient;
using kernels::Mask;
using kernels::MaskBlock;
using kernels::Partial;
using kernels::Rows;
using kernels::Shape;
using kernels::shifted;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kMatmulBlock = 512;    // queries, keys: bounds the score matrix
constexpr int64_t kWindowQueries = 128;  // queries that share a window's left edge

const Shape& supported(const Shape& shape, int cuda_device) {
  if (shape.softcap == 0 || cuda_device < 0) return shape;
  throw Error(ErrorKind::kConfig,
              "softcap = {}: attention through PyTorch's CUDA operators has none; use softcap = 0, "
              "or a CPU",
              shape.softcap);
}

/// What all tasks of a call have in common. Tensors of queries are [group, G, tokens, dim]: query
/// head h = key head * group + index in the group, so that a key head is read by its whole group
/// through a stride of 0.
struct Call {
  Call(const Shape& call_shape, ScalarType call_type, int cuda_device)
      : shape(supported(call_shape, cuda_device)),
        type(call_type),
        accumulator(kernels::accumulator_type(call_type)),
        group(call_shape.num_heads / call_shape.num_kv_heads),
        device(cuda_device < 0 ? at::Device(at::kCPU)
                               : at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(cuda_device))),
        device_guard(device) {}

  at::TensorOptions options(ScalarType scalar) const {
    return at::TensorOptions(device).dtype(aten_type(scalar));
  }
  at::Tensor of_queries(const Rows& rows, ScalarType scalar, int64_t tokens, int64_t dim) const {
    return at::from_blob(rows.data, {group, shape.num_kv_heads, tokens, dim},
                         {rows.head_stride, group * rows.head_stride, rows.token_stride, 1},
                         options(scalar));
  }
  /// LSE and delta: [group, G, tokens].
  at::Tensor numbers(const Rows& rows, int64_t tokens) const {
    return of_queries(kernels::number_rows(rows), accumulator, tokens, 1).squeeze(-1);
  }
  /// [G, tokens, dim].
  at::Tensor of_keys(const Rows& rows, ScalarType scalar, int64_t tokens, int64_t dim) const {
    return at::from_blob(rows.data, {shape.num_kv_heads, tokens, dim},
                         {rows.head_stride, rows.token_stride, 1}, options(scalar));
  }
  /// [group, G, tokens, dim], every member of the group the same memory.
  at::Tensor shared_keys(const Rows& rows, int64_t tokens, int64_t dim) const {
    return of_keys(rows, type, tokens, dim)
        .unsqueeze(0)
        .expand({group, shape.num_kv_heads, tokens, dim});
  }

  Shape shape;
  ScalarType type;
  ScalarType accumulator;
  int64_t group;
  at::Device device;
  c10::InferenceMode no_autograd;
  c10::DeviceGuard device_guard;
};

// --- parts of a task -----------------------------------------------------------------------------

KeyFragment keys_of(const Call& call, const KeyFragment& fragment, const Range& keys) {
  const int64_t first = keys.begin - fragment.position;
  return {.k = shifted(fragment.k, call.type, first, 0),
          .v = shifted(fragment.v, call.type, first, 0),
          .tokens = keys.size(),
          .position = keys.begin};
}

KeyGradient keys_of(const Call& call, const KeyGradient& gradient, int64_t first) {
  return {.dk = shifted(gradient.dk, call.accumulator, first, 0),
          .dv = shifted(gradient.dv, call.accumulator, first, 0)};
}

/// The task's rows for the queries at positions `queries`; keys are left as they are.
ForwardTask queries_of(const Call& call, ForwardTask task, ScalarType o_type,
                       const Range& queries) {
  const int64_t first = queries.begin - task.q_position;
  task.q = shifted(task.q, call.type, first, 0);
  task.o = shifted(task.o, o_type, first, 0);
  task.lse = shifted(kernels::number_rows(task.lse), call.accumulator, first, 0);
  task.q_tokens = queries.size();
  task.q_position = queries.begin;
  return task;
}

BackwardTask queries_of(const Call& call, BackwardTask task, const Range& queries) {
  const int64_t first = queries.begin - task.q_position;
  task.q = shifted(task.q, call.type, first, 0);
  task.d_o = shifted(task.d_o, call.type, first, 0);
  task.lse = shifted(kernels::number_rows(task.lse), call.accumulator, first, 0);
  task.delta = shifted(kernels::number_rows(task.delta), call.accumulator, first, 0);
  task.dq = shifted(task.dq, call.accumulator, first, 0);
  task.q_tokens = queries.size();
  task.q_position = queries.begin;
  return task;
}

template <typename Task>
Range positions(const Task& task) {
  return {task.q_position, task.q_position + task.q_tokens};
}

// --- matmul path ---------------------------------------------------------------------------------

/// Scores [group, G, queries, keys] of two ranges, scaled and capped, -infinity where the mask
/// hides. `slope`, if wanted: of the cap, where there is one.
at::Tensor masked_scores(const Call& call, const at::Tensor& q, const at::Tensor& k,
                         const Mask& mask, const Range& queries, const Range& keys,
                         at::Tensor* slope = nullptr) {
  at::Tensor scores = at::matmul(q, k.transpose(-1, -2)).mul_(call.shape.softmax_scale);
  if (call.shape.softcap > 0) {
    scores.div_(call.shape.softcap).tanh_();
    if (slope != nullptr) *slope = 1 - scores.square();
    scores.mul_(call.shape.softcap);
  }
  const Range seen_by_all = intersect(kernels::visible_keys(mask, queries.begin, keys),
                                      kernels::visible_keys(mask, queries.end - 1, keys));
  if (seen_by_all == keys) return scores;
  const auto integers = call.options(call.type).dtype(at::kLong);
  const at::Tensor i = at::arange(queries.begin, queries.end, integers).unsqueeze(1);
  const at::Tensor j = at::arange(keys.begin, keys.end, integers);
  at::Tensor hidden = at::zeros({queries.size(), keys.size()}, integers.dtype(at::kBool));
  if (mask.causal) hidden.logical_or_(j > i);
  if (mask.window_left >= 0) hidden.logical_or_(j < i - mask.window_left);
  if (mask.window_right >= 0) hidden.logical_or_(j - mask.window_right > i);
  return scores.masked_fill_(hidden, -kInfinity);
}

/// Calls `body(fragment index, keys)` for blocks of the keys that any of the queries may see.
template <typename Task, typename Body>
void for_key_blocks(const Task& task, const Range& queries, Body body) {
  for (size_t f = 0; f < task.keys.size(); ++f) {
    const KeyFragment& fragment = task.keys[f];
    const Range all{fragment.position, fragment.position + fragment.tokens};
    const Range seen{kernels::visible_keys(task.mask, queries.begin, all).begin,
                     kernels::visible_keys(task.mask, queries.end - 1, all).end};
    for (int64_t begin = seen.begin; begin < seen.end; begin += kMatmulBlock) {
      body(f, Range{begin, std::min(begin + kMatmulBlock, seen.end)});
    }
  }
}

template <typename Task, typename Body>
void for_query_blocks(const Task& task, Body body) {
  const Range all = positions(task);
  for (int64_t begin = all.begin; begin < all.end; begin += kMatmulBlock) {
    body(Range{begin, std::min(begin + kMatmulBlock, all.end)});
  }
}

void matmul_forward(const Call& call, ScalarType o_type, const ForwardTask& task) {
  const Shape& s = call.shape;
  const auto compute = aten_type(call.accumulator);
  for_query_blocks(task, [&](const Range& queries) {
    const ForwardTask part = queries_of(call, task, o_type, queries);
    const int64_t n = part.q_tokens;
    const at::Tensor q = call.of_queries(part.q, call.type, n, s.head_dim_qk).to(compute);
    const auto options = call.options(call.accumulator);
    at::Tensor max = at::full({call.group, s.num_kv_heads, n, 1}, -kInfinity, options);
    at::Tensor sum = at::zeros({call.group, s.num_kv_heads, n, 1}, options);
    at::Tensor o = at::zeros({call.group, s.num_kv_heads, n, s.head_dim_v}, options);
    for_key_blocks(part, queries, [&](size_t f, const Range& keys) {
      const KeyFragment block = keys_of(call, part.keys[f], keys);
      const auto k = call.of_keys(block.k, call.type, block.tokens, s.head_dim_qk).to(compute);
      const auto v = call.of_keys(block.v, call.type, block.tokens, s.head_dim_v).to(compute);
      at::Tensor p = masked_scores(call, q, k, part.mask, queries, keys);
      const at::Tensor new_max = at::maximum(max, p.amax(-1, /*keepdim=*/true));
      // Rows that have not met a key yet: exp(-inf - 0) = 0 instead of exp(-inf + inf).
      const at::Tensor base = new_max.masked_fill(new_max == -kInfinity, 0);
      p.sub_(base).exp_();
      const at::Tensor keep = (max - base).exp_();
      sum.mul_(keep).add_(p.sum(-1, /*keepdim=*/true));
      o.mul_(keep).add_(at::matmul(p, v));
      max = new_max;
    });
    o.div_(sum.masked_fill(sum == 0, 1));
    call.of_queries(part.o, o_type, n, s.head_dim_v).copy_(o);
    call.numbers(part.lse, n).copy_(max.add_(sum.log_()).squeeze(-1));
  });
}

/// Adds to dk, dv, summed over the group.
void add_key_gradients(const Call& call, const KeyGradient& to, int64_t tokens,
                       const at::Tensor& dk, const at::Tensor& dv) {
  const auto sum_type = aten_type(call.accumulator);
  const auto group_sum = [&](const at::Tensor& gradient) {
    return call.group == 1 ? gradient.squeeze(0) : gradient.sum({0}, /*keepdim=*/false, sum_type);
  };
  call.of_keys(to.dk, call.accumulator, tokens, call.shape.head_dim_qk).add_(group_sum(dk));
  call.of_keys(to.dv, call.accumulator, tokens, call.shape.head_dim_v).add_(group_sum(dv));
}

void matmul_backward(const Call& call, const BackwardTask& task) {
  const Shape& s = call.shape;
  const auto compute = aten_type(call.accumulator);
  for_query_blocks(task, [&](const Range& queries) {
    const BackwardTask part = queries_of(call, task, queries);
    const int64_t n = part.q_tokens;
    const at::Tensor q = call.of_queries(part.q, call.type, n, s.head_dim_qk).to(compute);
    const at::Tensor d_o = call.of_queries(part.d_o, call.type, n, s.head_dim_v).to(compute);
    const at::Tensor delta = call.numbers(part.delta, n).unsqueeze(-1);
    at::Tensor lse = call.numbers(part.lse, n).unsqueeze(-1);
    lse = lse.masked_fill(lse == -kInfinity, kInfinity);  // no key at all: every p becomes 0
    at::Tensor dq = at::zeros_like(q);
    for_key_blocks(part, queries, [&](size_t f, const Range& keys) {
      const KeyFragment block = keys_of(call, part.keys[f], keys);
      const auto k = call.of_keys(block.k, call.type, block.tokens, s.head_dim_qk).to(compute);
      const auto v = call.of_keys(block.v, call.type, block.tokens, s.head_dim_v).to(compute);
      at::Tensor slope;
      const at::Tensor p =
          masked_scores(call, q, k, part.mask, queries, keys, &slope).sub_(lse).exp_();
      at::Tensor ds = at::matmul(d_o, v.transpose(-1, -2)).sub_(delta).mul_(p);
      ds.mul_(s.softmax_scale);
      if (slope.defined()) ds.mul_(slope);
      dq.add_(at::matmul(ds, k));
      const int64_t first = keys.begin - part.keys[f].position;
      add_key_gradients(call, keys_of(call, part.key_gradients[f], first), block.tokens,
                        at::matmul(ds.transpose(-1, -2), q), at::matmul(p.transpose(-1, -2), d_o));
    });
    call.of_queries(part.dq, call.accumulator, n, s.head_dim_qk).add_(dq);
  });
}

// --- flash path (CPU) ----------------------------------------------------------------------------

/// O [group, G, tokens, E] and LSE [group, G, tokens] over some of the keys.
struct BlockResult {
  at::Tensor o;
  ScalarType o_type;
  at::Tensor lse;
};

BlockResult flash_block(const Call& call, const ForwardTask& part, const KeyFragment& keys,
                        bool causal) {
  const Shape& s = call.shape;
  auto [o, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
      call.of_queries(part.q, call.type, part.q_tokens, s.head_dim_qk),
      call.shared_keys(keys.k, keys.tokens, s.head_dim_qk),
      call.shared_keys(keys.v, keys.tokens, s.head_dim_v), /*dropout_p=*/0.0, causal,
      /*attn_mask=*/std::nullopt, s.softmax_scale);
  return {o, call.type, lse};
}

BlockResult masked_block(const Call& call, ForwardTask part, const KeyFragment& keys) {
  const Shape& s = call.shape;
  const auto options = call.options(call.accumulator);
  const at::Tensor o = at::empty({part.q_tokens, s.num_heads, s.head_dim_v}, options);
  const at::Tensor lse = at::empty({part.q_tokens, s.num_heads}, options);
  part.o = {o.data_ptr(), o.stride(0), o.stride(1)};
  part.lse = {lse.data_ptr(), lse.stride(0), lse.stride(1)};
  part.keys = {&keys, 1};
  matmul_forward(call, call.accumulator, part);
  const std::vector<int64_t> by_group{part.q_tokens, s.num_kv_heads, call.group, -1};
  return {o.view(by_group).permute({2, 1, 0, 3}), call.accumulator,
          lse.view(by_group).squeeze(-1).permute({2, 1, 0})};
}

/// Merges a block into the same queries' rows of `part`, whose O is of the accumulator type.
void merge_block(const Call& call, const BlockResult& block, const ForwardTask& part) {
  const kernels::RowShape rows{part.q_tokens, call.shape.num_kv_heads, call.shape.head_dim_v};
  const auto member = [&](const Rows& all, int64_t r) {
    Rows one = shifted(all, call.accumulator, 0, r);
    one.head_stride *= call.group;
    return one;
  };
  for (int64_t r = 0; r < call.group; ++r) {
    const at::Tensor o = block.o.select(0, r);
    const at::Tensor lse = block.lse.select(0, r);
    const Partial so_far{member(part.o, r), call.accumulator, member(part.lse, r)};
    const Partial added{{o.data_ptr(), o.stride(1), o.stride(0)},
                        block.o_type,
                        {lse.data_ptr(), lse.stride(1), lse.stride(0)}};
    const std::array<Partial, 2> parts{so_far, added};
    kernels::merge_partials(rows, call.type, parts, so_far);
  }
}

void flash_forward(const Call& call, ScalarType o_type, const ForwardTask& task) {
  const int64_t n = task.q_tokens;
  const int64_t dim = call.shape.head_dim_v;
  const std::vector<MaskBlock> blocks =
      kernels::cut_mask(task.mask, positions(task), task.keys, kWindowQueries);
  const auto attend = [&](const MaskBlock& block, const ForwardTask& part) {
    const KeyFragment keys = keys_of(call, task.keys[block.fragment], block.keys);
    if (block.kind == BlockKind::kPartial) return masked_block(call, part, keys);
    return flash_block(call, part, keys, block.kind == BlockKind::kCausal);
  };
  if (blocks.size() == 1 && blocks[0].queries == positions(task)) {
    const BlockResult whole = attend(blocks[0], task);
    call.of_queries(task.o, o_type, n, dim).copy_(whole.o);
    call.numbers(task.lse, n).copy_(whole.lse);
    return;
  }
  ForwardTask merged = task;
  at::Tensor scratch;
  if (o_type != call.accumulator) {
    scratch = at::empty({n, call.shape.num_heads, dim}, call.options(call.accumulator));
    merged.o = {scratch.data_ptr(), scratch.stride(0), scratch.stride(1)};
  }
  const at::Tensor o = call.of_queries(merged.o, call.accumulator, n, dim);
  o.zero_();
  call.numbers(merged.lse, n).fill_(-kInfinity);
  for (const MaskBlock& block : blocks) {
    const ForwardTask part = queries_of(call, merged, call.accumulator, block.queries);
    merge_block(call, attend(block, part), part);
  }
  if (scratch.defined()) call.of_queries(task.o, o_type, n, dim).copy_(o);
}

/// `o`: the rows' O as far as ATen needs it, see output_from_delta.
void flash_backward_block(const Call& call, const BackwardTask& part, const Rows& o,
                          const KeyFragment& keys, const KeyGradient& gradient, bool causal) {
  const Shape& s = call.shape;
  const auto queries = [&](const Rows& rows) {
    return call.of_queries(rows, call.type, part.q_tokens, s.head_dim_qk);
  };
  const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      queries(part.d_o), queries(part.q), call.shared_keys(keys.k, keys.tokens, s.head_dim_qk),
      call.shared_keys(keys.v, keys.tokens, s.head_dim_v), queries(o),
      call.numbers(part.lse, part.q_tokens), /*dropout_p=*/0.0, causal,
      /*attn_mask=*/std::nullopt, s.softmax_scale);
  call.of_queries(part.dq, call.accumulator, part.q_tokens, s.head_dim_qk).add_(dq);
  add_key_gradients(call, gradient, keys.tokens, dk, dv);
}

void flash_backward(const Call& call, const BackwardTask& task) {
  const Shape& s = call.shape;
  const at::Tensor scratch =
      at::empty({task.q_tokens, s.num_heads, s.head_dim_v}, call.options(call.type));
  const Rows all_o{scratch.data_ptr(), scratch.stride(0), scratch.stride(1)};
  kernels::output_from_delta({task.q_tokens, s.num_heads, s.head_dim_v}, call.type, task.d_o,
                             task.delta, all_o);
  for (const MaskBlock& block :
       kernels::cut_mask(task.mask, positions(task), task.keys, kWindowQueries)) {
    const KeyFragment& fragment = task.keys[block.fragment];
    const KeyFragment keys = keys_of(call, fragment, block.keys);
    const KeyGradient gradient =
        keys_of(call, task.key_gradients[block.fragment], block.keys.begin - fragment.position);
    BackwardTask part = queries_of(call, task, block.queries);
    if (block.kind == BlockKind::kPartial) {
      part.keys = {&keys, 1};
      part.key_gradients = {&gradient, 1};
      matmul_backward(call, part);
    } else {
      flash_backward_block(call, part,
                           shifted(all_o, call.type, block.queries.begin - task.q_position, 0),
                           keys, gradient, block.kind == BlockKind::kCausal);
    }
  }
}

bool flash_applies(const Shape& shape) {
  return shape.head_dim_qk == shape.head_dim_v && shape.softcap == 0;
}

}  // namespace

int64_t aten_forward(const Shape& shape, ScalarType type, std::span<const ForwardTask> tasks,
                     int cuda_device, std::optional<ScalarType> o_type) {
  if (cuda_device >= 0) {
    return cuda_forward(shape, type, o_type.value_or(type), tasks, cuda_device);
  }
  if (!flash_applies(shape)) {
    aten_matmul_forward(shape, type, tasks, cuda_device, o_type);
    return 0;
  }
  kernels::check_shape(shape);
  const Call call(shape, type, cuda_device);
  for (const ForwardTask& task : tasks) {
    kernels::check_task(shape, type, o_type.value_or(type), task);
    if (task.q_tokens > 0) flash_forward(call, o_type.value_or(type), task);
  }
  return 0;
}

int64_t aten_backward(const Shape& shape, ScalarType type, std::span<const BackwardTask> tasks,
                      int cuda_device) {
  if (cuda_device >= 0) return cuda_backward(shape, type, tasks, cuda_device);
  if (!flash_applies(shape)) {
    aten_matmul_backward(shape, type, tasks, cuda_device);
    return 0;
  }
  kernels::check_shape(shape);
  const Call call(shape, type, cuda_device);
  for (const BackwardTask& task : tasks) {
    kernels::check_task(shape, type, task);
    if (task.q_tokens > 0) flash_backward(call, task);
  }
  return 0;
}

void aten_matmul_forward(const Shape& shape, ScalarType type, std::span<const ForwardTask> tasks,
                         int cuda_device, std::optional<ScalarType> o_type) {
  kernels::check_shape(shape);
  const Call call(shape, type, cuda_device);
  for (const ForwardTask& task : tasks) {
    kernels::check_task(shape, type, o_type.value_or(type), task);
    matmul_forward(call, o_type.value_or(type), task);
  }
}

void aten_matmul_backward(const Shape& shape, ScalarType type, std::span<const BackwardTask> tasks,
                          int cuda_device) {
  kernels::check_shape(shape);
  const Call call(shape, type, cuda_device);
  for (const BackwardTask& task : tasks) {
    kernels::check_task(shape, type, task);
    matmul_backward(call, task);
  }
}

}  // namespace distca
