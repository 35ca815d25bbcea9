#include "distca/runtime/varlen_attention.h"

#include <ATen/ATen.h>

#include <limits>
#include <vector>

#include "distca/base/error.h"
#include "distca/comm/aten_types.h"
#include "distca/kernels/rows.h"
#include "distca/kernels/task_list.h"

namespace distca {
namespace {

using kernels::kGathered;
using kernels::QueryBuffer;
using kernels::QueryPiece;
using kernels::Rows;
using kernels::Shape;
using kernels::Task;
using kernels::TaskList;
using kernels::VarlenLaunch;
using kernels::VarlenPlan;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Rows [from, from + tokens) of a query buffer that are rows [row, row + tokens) of a launch.
struct Run {
  int64_t buffer;
  int64_t from;
  int64_t tokens;
  int64_t row;
};

struct Keys {
  at::Tensor k, v;
};

class Player {
 public:
  Player(const Shape& shape, ScalarType type, const TaskList& list, int cuda_device)
      : shape_(shape),
        type_(type),
        list_(list),
        accumulator_(kernels::accumulator_type(type)),
        device_(aten_device(cuda_device)),
        device_guard_(device_) {
    DISTCA_CHECK(shape.num_heads <= kernels::kMostSequences, "{} heads: a launch has at most {}",
                 shape.num_heads, kernels::kMostSequences);
  }

  int64_t forward(ScalarType o_type, const VarlenOperator& op) {
    const VarlenPlan plan = kernels::plan_forward_launches(type_, list_);
    fill_rows_without_keys(plan, o_type);
    const Keys gathered = gather(plan);
    for (const VarlenLaunch& launch : plan.launches) {
      const std::vector<Run> runs = runs_of(launch);
      const at::Tensor q = packed(runs, &QueryBuffer::q, shape_.head_dim_qk);
      const Keys keys = keys_of(launch, gathered);
      const auto [o, lse] = op.forward(launch, q, keys.k, keys.v);
      for (const Run& run : runs) {
        queries(run, &QueryBuffer::o, o_type, shape_.head_dim_v)
            .copy_(count(o.narrow(0, run.row, run.tokens)));
        numbers(run, &QueryBuffer::lse).copy_(count(lse.narrow(1, run.row, run.tokens).t()));
      }
    }
    return copied_;
  }

  int64_t backward(const VarlenOperator& op) {
    const VarlenPlan plan = kernels::plan_backward_launches(type_, list_);
    const Keys gathered = gather(plan);
    for (const VarlenLaunch& launch : plan.launches) {
      const std::vector<Run> runs = runs_of(launch);
      const at::Tensor q = packed(runs, &QueryBuffer::q, shape_.head_dim_qk);
      const Keys keys = keys_of(launch, gathered);
      const at::Tensor d_o = packed(runs, &QueryBuffer::d_o, shape_.head_dim_v);
      const at::Tensor delta = packed_numbers(runs, &QueryBuffer::delta);
      const at::Tensor lse = packed_numbers(runs, &QueryBuffer::lse).t().contiguous();
      const auto [dq, dk, dv] =
          op.backward(launch, q, keys.k, keys.v, d_o, aten_output_from_delta(d_o, delta), lse);
      for (const Run& run : runs) {
        queries(run, &QueryBuffer::dq, accumulator_, shape_.head_dim_qk)
            .add_(dq.narrow(0, run.row, run.tokens));
      }
      for (const auto& [range, row] : launch.gradients) {
        const kernels::KeyBuffer& to = list_.keys[range.buffer];
        keys_at(to.dk, accumulator_, range.row, range.tokens, shape_.head_dim_qk)
            .add_(dk.narrow(0, row, range.tokens));
        keys_at(to.dv, accumulator_, range.row, range.tokens, shape_.head_dim_v)
            .add_(dv.narrow(0, row, range.tokens));
      }
    }
    return copied_;
  }

 private:
  at::TensorOptions options(ScalarType scalar) const {
    return at::TensorOptions(device_).dtype(aten_type(scalar));
  }
  /// Rows [from, from + tokens) of a buffer's field.
  at::Tensor tensor(const Rows& rows, ScalarType scalar, int64_t from, int64_t tokens,
                    int64_t heads, int64_t dim) const {
    return at::from_blob(kernels::shifted(rows, scalar, from, 0).data, {tokens, heads, dim},
                         {rows.token_stride, rows.head_stride, 1}, options(scalar));
  }
  at::Tensor queries(const Run& run, Rows QueryBuffer::*field, ScalarType scalar,
                     int64_t dim) const {
    return tensor(list_.queries[run.buffer].*field, scalar, run.from, run.tokens, shape_.num_heads,
                  dim);
  }
  at::Tensor keys_at(const Rows& rows, ScalarType scalar, int64_t from, int64_t tokens,
                     int64_t dim) const {
    return tensor(rows, scalar, from, tokens, shape_.num_kv_heads, dim);
  }
  /// [tokens, H]
  at::Tensor numbers(const Run& run, Rows QueryBuffer::*field) const {
    return queries(run, field, accumulator_, 1).squeeze(-1);
  }
  /// Passes on what is about to be copied.
  at::Tensor count(const at::Tensor& source) {
    copied_ += static_cast<int64_t>(source.nbytes());
    return source;
  }

  Keys gather(const VarlenPlan& plan) {
    const int64_t rows = plan.gathered_rows();
    Keys all{at::empty({rows, shape_.num_kv_heads, shape_.head_dim_qk}, options(type_)),
             at::empty({rows, shape_.num_kv_heads, shape_.head_dim_v}, options(type_))};
    for (const auto& [range, row] : plan.gathered) {
      const kernels::KeyBuffer& from = list_.keys[range.buffer];
      all.k.narrow(0, row, range.tokens)
          .copy_(count(keys_at(from.k, type_, range.row, range.tokens, shape_.head_dim_qk)));
      all.v.narrow(0, row, range.tokens)
          .copy_(count(keys_at(from.v, type_, range.row, range.tokens, shape_.head_dim_v)));
    }
    return all;
  }

  Keys keys_of(const VarlenLaunch& launch, const Keys& gathered) const {
    const auto& [first, end] = launch.key_rows;
    if (launch.buffer == kGathered) {
      return {gathered.k.narrow(0, first, end - first), gathered.v.narrow(0, first, end - first)};
    }
    const kernels::KeyBuffer& buffer = list_.keys[launch.buffer];
    return {keys_at(buffer.k, type_, first, end - first, shape_.head_dim_qk),
            keys_at(buffer.v, type_, first, end - first, shape_.head_dim_v)};
  }

  /// The rows of the launch's pieces, those that adjoin in a buffer as one.
  std::vector<Run> runs_of(const VarlenLaunch& launch) const {
    std::vector<Run> runs;
    int64_t row = 0;
    for (const QueryPiece& piece : launch.pieces) {
      const Task& task = list_.tasks[piece.task];
      const int64_t from = task.q_row + piece.queries.begin - task.q_position;
      const int64_t tokens = piece.queries.size();
      if (!runs.empty() && runs.back().buffer == task.query_buffer &&
          runs.back().from + runs.back().tokens == from) {
        runs.back().tokens += tokens;
      } else {
        runs.push_back({task.query_buffer, from, tokens, row});
      }
      row += tokens;
    }
    return runs;
  }
  /// [query rows, H, dim], in place where they lie in a row.
  at::Tensor packed(const std::vector<Run>& runs, Rows QueryBuffer::*field, int64_t dim) {
    if (runs.size() == 1 && kernels::loads_aligned(list_.queries[runs[0].buffer].*field, type_)) {
      return queries(runs[0], field, type_, dim);
    }
    return copied(runs, field, type_, dim);
  }
  /// [query rows, H]
  at::Tensor packed_numbers(const std::vector<Run>& runs, Rows QueryBuffer::*field) {
    return copied(runs, field, accumulator_, 1).squeeze(-1);
  }
  at::Tensor copied(const std::vector<Run>& runs, Rows QueryBuffer::*field, ScalarType scalar,
                    int64_t dim) {
    const int64_t tokens = runs.back().row + runs.back().tokens;
    const at::Tensor rows = at::empty({tokens, shape_.num_heads, dim}, options(scalar));
    for (const Run& run : runs) {
      rows.narrow(0, run.row, run.tokens).copy_(count(queries(run, field, scalar, dim)));
    }
    return rows;
  }

  void fill_rows_without_keys(const VarlenPlan& plan, ScalarType o_type) const {
    std::vector<int64_t> missing;
    for (const Task& task : list_.tasks) missing.push_back(task.q_tokens);
    for (const VarlenLaunch& launch : plan.launches) {
      for (const QueryPiece& piece : launch.pieces) missing[piece.task] -= piece.queries.size();
    }
    for (size_t i = 0; i < missing.size(); ++i) {
      if (missing[i] == 0) continue;
      const Task& task = list_.tasks[i];
      const Run all{task.query_buffer, task.q_row, task.q_tokens, 0};
      queries(all, &QueryBuffer::o, o_type, shape_.head_dim_v).zero_();
      numbers(all, &QueryBuffer::lse).fill_(-kInfinity);
    }
  }

  Shape shape_;
  ScalarType type_;
  const TaskList& list_;
  ScalarType accumulator_;
  at::Device device_;
  c10::InferenceMode no_autograd_;
  c10::DeviceGuard device_guard_;
  int64_t copied_ = 0;
};

}  // namespace

int64_t varlen_forward(const Shape& shape, ScalarType type, ScalarType o_type, const TaskList& list,
                       int cuda_device, const VarlenOperator& op) {
  kernels::check_forward(shape, type, o_type, list);
  return Player(shape, type, list, cuda_device).forward(o_type, op);
}

int64_t varlen_backward(const Shape& shape, ScalarType type, const TaskList& list, int cuda_device,
                        const VarlenOperator& op) {
  kernels::check_backward(shape, list);
  return Player(shape, type, list, cuda_device).backward(op);
}

at::Tensor aten_output_from_delta(const at::Tensor& d_o, const at::Tensor& delta) {
  const at::Tensor row = d_o.to(delta.scalar_type());
  const double smallest_normal = row.scalar_type() == at::kDouble
                                     ? std::numeric_limits<double>::min()
                                     : std::numeric_limits<float>::min();
  // Scaled by the largest element, the square neither overflows nor vanishes. A denormal's
  // reciprocal may be infinite: its row is scaled by the smallest normal number's.
  const at::Tensor scale =
      row.abs().amax(-1, /*keepdim=*/true).clamp_min_(smallest_normal).reciprocal_();
  const at::Tensor scaled = row * scale;
  const at::Tensor norm = scaled.square().sum(-1, /*keepdim=*/true);
  const at::Tensor factor = (delta.unsqueeze(-1) * scale).div_(norm).masked_fill_(norm == 0, 0);
  return (scaled * factor).to(d_o.scalar_type()).contiguous();
}

}  // namespace distca
