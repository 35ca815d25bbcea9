#include "distca/runtime/aten_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <vector>

#include "distca/base/error.h"
#include "distca/base/integers.h"
#include "distca/comm/aten_types.h"
#include "distca/comm/vector_functions.h"
#include "distca/kernels/mask_parts.h"
#include "distca/kernels/merge.h"
#include "distca/kernels/rows.h"
#include "distca/kernels/task_list.h"
#include "distca/runtime/tensor_rows.h"

namespace distca {
namespace {

using kernels::KeyBuffer;
using kernels::KeyRange;
using kernels::MaskPart;
using kernels::MaskPartKind;
using kernels::Partial;
using kernels::QueryBuffer;
using kernels::Rows;
using kernels::Shape;
using kernels::shifted;
using kernels::TaskList;

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

/// Consecutive queries or keys of a document, rows of one buffer.
template <typename Buffer>
struct DocumentRows {
  const Buffer& buffer;
  int64_t row;
  Range positions;
  int64_t tokens() const { return positions.size(); }
  /// The part of the rows that stands at these positions.
  DocumentRows part(const Range& some) const {
    return {buffer, row + some.begin - positions.begin, some};
  }
};
using Queries = DocumentRows<QueryBuffer>;
using Keys = DocumentRows<KeyBuffer>;

/// The arguments that all tasks of a call share. Tensors of queries are [group, G, tokens, dim]:
/// query head h = key head * group + index in the group, so that a key head is read by its whole
/// group through a stride of 0.
struct Call {
  Shape shape;
  ScalarType type;
  const TaskList& list;
  at::Device device;
  ScalarType accumulator = kernels::accumulator_type(type);
  int64_t group = shape.num_heads / shape.num_kv_heads;
  c10::InferenceMode no_autograd{};
  c10::DeviceGuard device_guard{device};

  at::TensorOptions options(ScalarType scalar) const {
    return at::TensorOptions(device).dtype(aten_type(scalar));
  }
  Queries queries(const kernels::Task& task) const {
    return {list.queries[task.query_buffer],
            task.q_row,
            {task.q_position, task.q_position + task.q_tokens}};
  }
  Keys keys(const KeyRange& range) const {
    return {list.keys[range.buffer], range.row, {range.position, range.position + range.tokens}};
  }
  at::Tensor of_queries(const Rows& rows, ScalarType scalar, int64_t tokens, int64_t dim) const {
    return at::from_blob(rows.data, {group, shape.num_kv_heads, tokens, dim},
                         {rows.head_stride, group * rows.head_stride, rows.token_stride, 1},
                         options(scalar));
  }
  at::Tensor of_queries(const Queries& rows, Rows QueryBuffer::*field, ScalarType scalar,
                        int64_t dim) const {
    return of_queries(shifted(rows.buffer.*field, scalar, rows.row, 0), scalar, rows.tokens(), dim);
  }
  /// LSE and delta: [group, G, tokens].
  at::Tensor numbers(const Queries& rows, Rows QueryBuffer::*field) const {
    return of_queries(rows, field, accumulator, 1).squeeze(-1);
  }
  /// [G, tokens, dim].
  at::Tensor of_keys(const Keys& keys, Rows KeyBuffer::*field, ScalarType scalar,
                     int64_t dim) const {
    const Rows rows = shifted(keys.buffer.*field, scalar, keys.row, 0);
    return at::from_blob(rows.data, {shape.num_kv_heads, keys.tokens(), dim},
                         {rows.head_stride, rows.token_stride, 1}, options(scalar));
  }
  /// [group, G, tokens, dim], every member of the group the same memory.
  at::Tensor shared_keys(const Keys& keys, Rows KeyBuffer::*field, int64_t dim) const {
    return of_keys(keys, field, type, dim)
        .unsqueeze(0)
        .expand({group, shape.num_kv_heads, keys.tokens(), dim});
  }
};

// --- matmul path ---------------------------------------------------------------------------------

/// Scores [group, G, queries, keys] of two ranges, scaled and capped, -infinity where the mask
/// hides. `slope`, if wanted: of the cap, where there is one.
at::Tensor masked_scores(const Call& call, const at::Tensor& q, const at::Tensor& k,
                         const kernels::Mask& mask, const Range& queries, const Range& keys,
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

/// Calls `body(keys)` for parts of the keys that any of the queries may see.
template <typename Body>
void for_key_blocks(const kernels::Mask& mask, const Range& queries, const Keys& all, Body body) {
  const Range seen{kernels::visible_keys(mask, queries.begin, all.positions).begin,
                   kernels::visible_keys(mask, queries.end - 1, all.positions).end};
  for (int64_t begin = seen.begin; begin < seen.end; begin += kMatmulBlock) {
    body(all.part({begin, std::min(begin + kMatmulBlock, seen.end)}));
  }
}

template <typename Body>
void for_query_blocks(const Queries& all, Body body) {
  const auto& [first, end] = all.positions;
  for (int64_t begin = first; begin < end; begin += kMatmulBlock) {
    body(all.part({begin, std::min(begin + kMatmulBlock, end)}));
  }
}

/// O [group, G, tokens, E] and LSE [group, G, tokens] over some of the keys.
struct PartResult {
  at::Tensor o;
  ScalarType o_type;
  at::Tensor lse;
};

/// Computes O and LSE of at most kMatmulBlock queries.
PartResult matmul_block(const Call& call, const kernels::Mask& mask, const Queries& queries,
                        std::span<const Keys> all_keys) {
  const Shape& s = call.shape;
  const auto compute = aten_type(call.accumulator);
  const int64_t n = queries.tokens();
  const at::Tensor q =
      call.of_queries(queries, &QueryBuffer::q, call.type, s.head_dim_qk).to(compute);
  const auto options = call.options(call.accumulator);
  at::Tensor max = at::full({call.group, s.num_kv_heads, n, 1}, -kInfinity, options);
  at::Tensor sum = at::zeros({call.group, s.num_kv_heads, n, 1}, options);
  at::Tensor o = at::zeros({call.group, s.num_kv_heads, n, s.head_dim_v}, options);
  for (const Keys& some : all_keys) {
    for_key_blocks(mask, queries.positions, some, [&](const Keys& keys) {
      const auto k = call.of_keys(keys, &KeyBuffer::k, call.type, s.head_dim_qk).to(compute);
      const auto v = call.of_keys(keys, &KeyBuffer::v, call.type, s.head_dim_v).to(compute);
      at::Tensor p = masked_scores(call, q, k, mask, queries.positions, keys.positions);
      const at::Tensor new_max = at::maximum(max, p.amax(-1, /*keepdim=*/true));
      // Rows that have not met a key yet: exp(-inf - 0) = 0 instead of exp(-inf + inf).
      const at::Tensor base = new_max.masked_fill(new_max == -kInfinity, 0);
      p.sub_(base).exp_();
      const at::Tensor keep = (max - base).exp_();
      sum.mul_(keep).add_(p.sum(-1, /*keepdim=*/true));
      o.mul_(keep).add_(at::matmul(p, v));
      max = new_max;
    });
  }
  o.div_(sum.masked_fill(sum == 0, 1));
  return {o, call.accumulator, max.add_(sum.log_()).squeeze(-1)};
}

std::vector<Keys> keys_of(const Call& call, const kernels::Task& task) {
  std::vector<Keys> keys;
  for (const KeyRange& range : task.keys) keys.push_back(call.keys(range));
  return keys;
}

void matmul_forward(const Call& call, ScalarType o_type, const kernels::Task& task) {
  const std::vector<Keys> keys = keys_of(call, task);
  for_query_blocks(call.queries(task), [&](const Queries& queries) {
    const PartResult result = matmul_block(call, task.mask, queries, keys);
    call.of_queries(queries, &QueryBuffer::o, o_type, call.shape.head_dim_v).copy_(result.o);
    call.numbers(queries, &QueryBuffer::lse).copy_(result.lse);
  });
}

/// Adds to dk, dv, summed over the group.
void add_key_gradients(const Call& call, const Keys& keys, const at::Tensor& dk,
                       const at::Tensor& dv) {
  const auto sum_type = aten_type(call.accumulator);
  const auto group_sum = [&](const at::Tensor& gradient) {
    return call.group == 1 ? gradient.squeeze(0) : gradient.sum({0}, /*keepdim=*/false, sum_type);
  };
  call.of_keys(keys, &KeyBuffer::dk, call.accumulator, call.shape.head_dim_qk).add_(group_sum(dk));
  call.of_keys(keys, &KeyBuffer::dv, call.accumulator, call.shape.head_dim_v).add_(group_sum(dv));
}

void matmul_backward(const Call& call, const kernels::Mask& mask, const Queries& all_queries,
                     std::span<const Keys> all_keys) {
  const Shape& s = call.shape;
  const auto compute = aten_type(call.accumulator);
  for_query_blocks(all_queries, [&](const Queries& queries) {
    const at::Tensor q =
        call.of_queries(queries, &QueryBuffer::q, call.type, s.head_dim_qk).to(compute);
    const at::Tensor d_o =
        call.of_queries(queries, &QueryBuffer::d_o, call.type, s.head_dim_v).to(compute);
    const at::Tensor delta = call.numbers(queries, &QueryBuffer::delta).unsqueeze(-1);
    at::Tensor lse = call.numbers(queries, &QueryBuffer::lse).unsqueeze(-1);
    lse = lse.masked_fill(lse == -kInfinity, kInfinity);  // no key at all: every p becomes 0
    at::Tensor dq = at::zeros_like(q);
    for (const Keys& some : all_keys) {
      for_key_blocks(mask, queries.positions, some, [&](const Keys& keys) {
        const auto k = call.of_keys(keys, &KeyBuffer::k, call.type, s.head_dim_qk).to(compute);
        const auto v = call.of_keys(keys, &KeyBuffer::v, call.type, s.head_dim_v).to(compute);
        at::Tensor slope;
        const at::Tensor p =
            masked_scores(call, q, k, mask, queries.positions, keys.positions, &slope)
                .sub_(lse)
                .exp_();
        at::Tensor ds = at::matmul(d_o, v.transpose(-1, -2)).sub_(delta).mul_(p);
        ds.mul_(s.softmax_scale);
        if (slope.defined()) ds.mul_(slope);
        dq.add_(at::matmul(ds, k));
        add_key_gradients(call, keys, at::matmul(ds.transpose(-1, -2), q),
                          at::matmul(p.transpose(-1, -2), d_o));
      });
    }
    call.of_queries(queries, &QueryBuffer::dq, call.accumulator, s.head_dim_qk).add_(dq);
  });
}

// --- flash path (CPU) ----------------------------------------------------------------------------

PartResult flash_part(const Call& call, const Queries& queries, const Keys& keys, bool causal) {
  const Shape& s = call.shape;
  auto [o, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
      call.of_queries(queries, &QueryBuffer::q, call.type, s.head_dim_qk),
      call.shared_keys(keys, &KeyBuffer::k, s.head_dim_qk),
      call.shared_keys(keys, &KeyBuffer::v, s.head_dim_v), /*dropout_p=*/0.0, causal,
      /*attn_mask=*/std::nullopt, s.softmax_scale);
  return {o, call.type, lse};
}

/// Merges a part into rows of `o`, of the accumulator type, and of `lse`.
void merge_part(const Call& call, const PartResult& part, int64_t tokens, const Rows& o,
                const Rows& lse) {
  const kernels::RowShape rows{tokens, call.shape.num_kv_heads, call.shape.head_dim_v};
  const auto member = [&](const Rows& all, int64_t r) {
    Rows one = shifted(all, call.accumulator, 0, r);
    one.head_stride *= call.group;
    return one;
  };
  for (int64_t r = 0; r < call.group; ++r) {
    const at::Tensor part_o = part.o.select(0, r);
    const at::Tensor part_lse = part.lse.select(0, r);
    const Partial so_far{member(o, r), call.accumulator, member(lse, r)};
    const Partial added{{part_o.data_ptr(), part_o.stride(1), part_o.stride(0)},
                        part.o_type,
                        {part_lse.data_ptr(), part_lse.stride(1), part_lse.stride(0)}};
    const std::array<Partial, 2> parts{so_far, added};
    kernels::merge_partials(rows, call.type, parts, so_far);
  }
}

void flash_forward(const Call& call, ScalarType o_type, const kernels::Task& task) {
  const Queries all = call.queries(task);
  const int64_t dim = call.shape.head_dim_v;
  const std::vector<MaskPart> parts =
      kernels::cut_mask(task.mask, all.positions, task.keys, kWindowQueries);
  const auto result_of = [&](const MaskPart& part) {
    const Queries queries = all.part(part.queries);
    const Keys keys = call.keys(task.keys[part.range]).part(part.keys);
    if (part.kind == MaskPartKind::kPartial) {
      return matmul_block(call, task.mask, queries, {&keys, 1});
    }
    return flash_part(call, queries, keys, part.kind == MaskPartKind::kCausal);
  };
  const at::Tensor task_o = call.of_queries(all, &QueryBuffer::o, o_type, dim);
  const at::Tensor task_lse = call.numbers(all, &QueryBuffer::lse);
  if (parts.size() == 1 && parts[0].queries == all.positions) {
    const PartResult whole = result_of(parts[0]);
    task_o.copy_(whole.o);
    task_lse.copy_(whole.lse);
    return;
  }
  Rows merged = shifted(all.buffer.o, o_type, all.row, 0);
  at::Tensor scratch;
  if (o_type != call.accumulator) {
    scratch = at::empty({all.tokens(), call.shape.num_heads, dim}, call.options(call.accumulator));
    merged = rows_of(scratch);
  }
  const Rows lse = shifted(all.buffer.lse, call.accumulator, all.row, 0);
  const at::Tensor o = call.of_queries(merged, call.accumulator, all.tokens(), dim);
  o.zero_();
  task_lse.fill_(-kInfinity);
  for (const MaskPart& part : parts) {
    const int64_t first = part.queries.begin - all.positions.begin;
    merge_part(call, result_of(part), part.queries.size(),
               shifted(merged, call.accumulator, first, 0),
               shifted(lse, call.accumulator, first, 0));
  }
  if (scratch.defined()) task_o.copy_(o);
}

/// `o`: the queries' O as far as ATen needs it, see output_from_delta.
void flash_backward_part(const Call& call, const Queries& queries, const Rows& o, const Keys& keys,
                         bool causal) {
  const int64_t dim = call.shape.head_dim_qk;
  const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      call.of_queries(queries, &QueryBuffer::d_o, call.type, dim),
      call.of_queries(queries, &QueryBuffer::q, call.type, dim),
      call.shared_keys(keys, &KeyBuffer::k, dim), call.shared_keys(keys, &KeyBuffer::v, dim),
      call.of_queries(o, call.type, queries.tokens(), dim),
      call.numbers(queries, &QueryBuffer::lse), /*dropout_p=*/0.0, causal,
      /*attn_mask=*/std::nullopt, call.shape.softmax_scale);
  call.of_queries(queries, &QueryBuffer::dq, call.accumulator, dim).add_(dq);
  add_key_gradients(call, keys, dk, dv);
}

void flash_backward(const Call& call, const kernels::Task& task) {
  const Queries all = call.queries(task);
  const kernels::RowShape rows{all.tokens(), call.shape.num_heads, call.shape.head_dim_v};
  const at::Tensor scratch =
      at::empty({rows.tokens, rows.heads, rows.dim}, call.options(call.type));
  const Rows all_o = rows_of(scratch);
  kernels::output_from_delta(rows, call.type, shifted(all.buffer.d_o, call.type, all.row, 0),
                             shifted(all.buffer.delta, call.accumulator, all.row, 0), all_o);
  for (const MaskPart& part :
       kernels::cut_mask(task.mask, all.positions, task.keys, kWindowQueries)) {
    const Queries queries = all.part(part.queries);
    const Keys keys = call.keys(task.keys[part.range]).part(part.keys);
    if (part.kind == MaskPartKind::kPartial) {
      matmul_backward(call, task.mask, queries, {&keys, 1});
    } else {
      const Rows o = shifted(all_o, call.type, part.queries.begin - all.positions.begin, 0);
      flash_backward_part(call, queries, o, keys, part.kind == MaskPartKind::kCausal);
    }
  }
}

bool flash_applies(const Shape& shape) {
  return shape.head_dim_qk == shape.head_dim_v && shape.softcap == 0;
}

void forward(const Shape& shape, ScalarType type, ScalarType o_type, const TaskList& list,
             int cuda_device, bool flash) {
  kernels::check_forward(shape, type, o_type, list);
  settle_vector_functions();
  const Call call{supported(shape, cuda_device), type, list, aten_device(cuda_device)};
  for (const kernels::Task& task : list.tasks) {
    if (task.q_tokens > 0) (flash ? flash_forward : matmul_forward)(call, o_type, task);
  }
}

void backward(const Shape& shape, ScalarType type, const TaskList& list, int cuda_device,
              bool flash) {
  kernels::check_backward(shape, list);
  settle_vector_functions();
  const Call call{supported(shape, cuda_device), type, list, aten_device(cuda_device)};
  for (const kernels::Task& task : list.tasks) {
    if (task.q_tokens == 0) continue;
    if (flash) {
      flash_backward(call, task);
    } else {
      matmul_backward(call, task.mask, call.queries(task), keys_of(call, task));
    }
  }
}

}  // namespace

void aten_forward(const Shape& shape, ScalarType type, const TaskList& list,
                  std::optional<ScalarType> o_type) {
  forward(shape, type, o_type.value_or(type), list, /*cuda_device=*/-1, flash_applies(shape));
}

void aten_backward(const Shape& shape, ScalarType type, const TaskList& list) {
  backward(shape, type, list, /*cuda_device=*/-1, flash_applies(shape));
}

void aten_matmul_forward(const Shape& shape, ScalarType type, const TaskList& list, int cuda_device,
                         std::optional<ScalarType> o_type) {
  forward(shape, type, o_type.value_or(type), list, cuda_device, /*flash=*/false);
}

void aten_matmul_backward(const Shape& shape, ScalarType type, const TaskList& list,
                          int cuda_device) {
  backward(shape, type, list, cuda_device, /*flash=*/false);
}

}  // namespace distca
