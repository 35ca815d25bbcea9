#include "distca/runtime/varlen_attention.h"

#include <ATen/ATen.h>

#include <limits>
#include <vector>

#include "distca/base/error.h"
#include "distca/comm/aten_types.h"
#include "distca/kernels/rows.h"

namespace distca {
namespace {

using kernels::BackwardTask;
using kernels::ForwardTask;
using kernels::GradientTarget;
using kernels::KeyBuffer;
using kernels::KeyCopy;
using kernels::QueryPiece;
using kernels::Rows;
using kernels::Shape;
using kernels::shifted;
using kernels::VarlenLaunch;
using kernels::VarlenPlan;
using kernels::VarlenTask;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kAlignment = 16;  // bytes that an operator loads at once

/// Consecutive rows in memory that are rows [row, row + tokens) of a launch.
struct Run {
  Rows rows;
  int64_t tokens;
  int64_t row;
};

struct Keys {
  at::Tensor k, v;
};

class Player {
 public:
  Player(const Shape& shape, ScalarType type, int cuda_device)
      : shape_(shape),
        type_(type),
        accumulator_(kernels::accumulator_type(type)),
        device_(cuda_device < 0
                    ? at::Device(at::kCPU)
                    : at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(cuda_device))),
        device_guard_(device_) {
    DISTCA_CHECK(shape.num_heads <= kernels::kMostSequences, "{} heads: a launch has at most {}",
                 shape.num_heads, kernels::kMostSequences);
  }

  int64_t forward(ScalarType o_type, std::span<const ForwardTask> tasks, const VarlenOperator& op) {
    std::vector<VarlenTask> planned;
    for (const ForwardTask& task : tasks) planned.push_back(varlen_task(task));
    const VarlenPlan plan = kernels::plan_forward_launches(type_, planned);
    fill_rows_without_keys(plan, o_type, tasks);
    find_keys(plan);
    for (const VarlenLaunch& launch : plan.launches) {
      const at::Tensor q =
          packed(runs(launch, tasks, type_, &ForwardTask::q), launch, shape_.head_dim_qk);
      const Keys keys = keys_of(launch);
      const auto [o, lse] = op.forward(launch, q, keys.k, keys.v);
      for (const Run& run : runs(launch, tasks, o_type, &ForwardTask::o)) {
        queries(run.rows, o_type, run.tokens, shape_.head_dim_v)
            .copy_(count(o.narrow(0, run.row, run.tokens)));
      }
      for (const Run& run : runs(launch, tasks, accumulator_, &ForwardTask::lse)) {
        numbers(run).copy_(count(lse.narrow(1, run.row, run.tokens).t()));
      }
    }
    return copied_;
  }

  int64_t backward(std::span<const BackwardTask> tasks, const VarlenOperator& op) {
    std::vector<VarlenTask> planned;
    for (const BackwardTask& task : tasks) planned.push_back(varlen_task(task));
    const VarlenPlan plan = kernels::plan_backward_launches(type_, planned);
    find_keys(plan);
    for (const VarlenLaunch& launch : plan.launches) {
      const at::Tensor q =
          packed(runs(launch, tasks, type_, &BackwardTask::q), launch, shape_.head_dim_qk);
      const Keys keys = keys_of(launch);
      const at::Tensor d_o =
          packed(runs(launch, tasks, type_, &BackwardTask::d_o), launch, shape_.head_dim_v);
      const at::Tensor delta = packed_numbers(launch, tasks, &BackwardTask::delta);
      const at::Tensor lse = packed_numbers(launch, tasks, &BackwardTask::lse).t().contiguous();
      const auto [dq, dk, dv] =
          op.backward(launch, q, keys.k, keys.v, d_o, aten_output_from_delta(d_o, delta), lse);
      for (const Run& run : runs(launch, tasks, accumulator_, &BackwardTask::dq)) {
        queries(run.rows, accumulator_, run.tokens, shape_.head_dim_qk)
            .add_(dq.narrow(0, run.row, run.tokens));
      }
      for (const GradientTarget& target : launch.gradients) {
        key_tensor(target.to.dk, accumulator_, target.tokens, shape_.head_dim_qk)
            .add_(dk.narrow(0, target.row, target.tokens));
        key_tensor(target.to.dv, accumulator_, target.tokens, shape_.head_dim_v)
            .add_(dv.narrow(0, target.row, target.tokens));
      }
    }
    return copied_;
  }

 private:
  at::TensorOptions options(ScalarType scalar) const {
    return at::TensorOptions(device_).dtype(aten_type(scalar));
  }
  at::Tensor tensor(const Rows& rows, ScalarType scalar, int64_t tokens, int64_t heads,
                    int64_t dim) const {
    return at::from_blob(rows.data, {tokens, heads, dim}, {rows.token_stride, rows.head_stride, 1},
                         options(scalar));
  }
  at::Tensor queries(const Rows& rows, ScalarType scalar, int64_t tokens, int64_t dim) const {
    return tensor(rows, scalar, tokens, shape_.num_heads, dim);
  }
  at::Tensor key_tensor(const Rows& rows, ScalarType scalar, int64_t tokens, int64_t dim) const {
    return tensor(rows, scalar, tokens, shape_.num_kv_heads, dim);
  }
  /// [tokens, H]
  at::Tensor numbers(const Run& run) const {
    return queries(run.rows, accumulator_, run.tokens, 1).squeeze(-1);
  }
  /// Passes on what is about to be copied.
  at::Tensor count(const at::Tensor& source) {
    copied_ += static_cast<int64_t>(source.nbytes());
    return source;
  }

  void find_keys(const VarlenPlan& plan) {
    const Shape& s = shape_;
    for (const KeyBuffer& buffer : plan.buffers) {
      if (!buffer.gathered()) {
        buffers_.push_back({key_tensor(buffer.k, type_, buffer.rows, s.head_dim_qk),
                            key_tensor(buffer.v, type_, buffer.rows, s.head_dim_v)});
        continue;
      }
      const Keys all{at::empty({buffer.rows, s.num_kv_heads, s.head_dim_qk}, options(type_)),
                     at::empty({buffer.rows, s.num_kv_heads, s.head_dim_v}, options(type_))};
      for (const KeyCopy& copy : buffer.copies) {
        all.k.narrow(0, copy.row, copy.tokens)
            .copy_(count(key_tensor(copy.k, type_, copy.tokens, s.head_dim_qk)));
        all.v.narrow(0, copy.row, copy.tokens)
            .copy_(count(key_tensor(copy.v, type_, copy.tokens, s.head_dim_v)));
      }
      buffers_.push_back(all);
    }
  }

  Keys keys_of(const VarlenLaunch& launch) const {
    const Keys& buffer = buffers_[launch.buffer];
    const Range& rows = launch.key_rows;
    return {buffer.k.narrow(0, rows.begin, rows.size()),
            buffer.v.narrow(0, rows.begin, rows.size())};
  }

  /// The rows `member` of the launch's pieces, those that adjoin in memory as one.
  template <typename Task>
  std::vector<Run> runs(const VarlenLaunch& launch, std::span<const Task> tasks, ScalarType scalar,
                        Rows Task::*member) const {
    std::vector<Run> all;
    int64_t row = 0;
    for (const QueryPiece& piece : launch.pieces) {
      const Task& task = tasks[piece.task];
      Rows rows = task.*member;
      if (rows.head_stride == 0) rows = kernels::number_rows(rows);
      rows = shifted(rows, scalar, piece.queries.begin - task.q_position, 0);
      const int64_t tokens = piece.queries.size();
      if (!all.empty() && adjoin(all.back(), rows, scalar)) {
        all.back().tokens += tokens;
      } else {
        all.push_back({rows, tokens, row});
      }
      row += tokens;
    }
    return all;
  }
  static bool adjoin(const Run& run, const Rows& next, ScalarType scalar) {
    return run.rows.token_stride == next.token_stride && run.rows.head_stride == next.head_stride &&
           shifted(run.rows, scalar, run.tokens, 0).data == next.data;
  }
  bool in_place(const std::vector<Run>& all) const {
    if (all.size() != 1) return false;
    const Rows& rows = all[0].rows;
    const int64_t bytes = element_bytes(type_);
    return reinterpret_cast<uintptr_t>(rows.data) % kAlignment == 0 &&
           rows.token_stride * bytes % kAlignment == 0 &&
           rows.head_stride * bytes % kAlignment == 0;
  }
  /// [query rows, H, dim]
  at::Tensor packed(const std::vector<Run>& all, const VarlenLaunch& launch, int64_t dim) {
    if (in_place(all)) return queries(all[0].rows, type_, all[0].tokens, dim);
    const at::Tensor rows = at::empty({launch.query_rows(), shape_.num_heads, dim}, options(type_));
    for (const Run& run : all) {
      rows.narrow(0, run.row, run.tokens).copy_(count(queries(run.rows, type_, run.tokens, dim)));
    }
    return rows;
  }
  /// [query rows, H]
  at::Tensor packed_numbers(const VarlenLaunch& launch, std::span<const BackwardTask> tasks,
                            Rows BackwardTask::*member) {
    const at::Tensor rows =
        at::empty({launch.query_rows(), shape_.num_heads}, options(accumulator_));
    for (const Run& run : runs(launch, tasks, accumulator_, member)) {
      rows.narrow(0, run.row, run.tokens).copy_(count(numbers(run)));
    }
    return rows;
  }

  void fill_rows_without_keys(const VarlenPlan& plan, ScalarType o_type,
                              std::span<const ForwardTask> tasks) const {
    std::vector<int64_t> missing;
    for (const ForwardTask& task : tasks) missing.push_back(task.q_tokens);
    for (const VarlenLaunch& launch : plan.launches) {
      for (const QueryPiece& piece : launch.pieces) missing[piece.task] -= piece.queries.size();
    }
    for (size_t i = 0; i < tasks.size(); ++i) {
      if (missing[i] == 0) continue;
      const int64_t tokens = tasks[i].q_tokens;
      queries(tasks[i].o, o_type, tokens, shape_.head_dim_v).zero_();
      numbers({kernels::number_rows(tasks[i].lse), tokens, 0}).fill_(-kInfinity);
    }
  }

  Shape shape_;
  ScalarType type_;
  ScalarType accumulator_;
  at::Device device_;
  c10::InferenceMode no_autograd_;
  c10::DeviceGuard device_guard_;
  std::vector<Keys> buffers_;
  int64_t copied_ = 0;
};

}  // namespace

int64_t varlen_forward(const Shape& shape, ScalarType type, ScalarType o_type,
                       std::span<const ForwardTask> tasks, int cuda_device,
                       const VarlenOperator& op) {
  kernels::check_shape(shape);
  for (const ForwardTask& task : tasks) kernels::check_task(shape, type, o_type, task);
  return Player(shape, type, cuda_device).forward(o_type, tasks, op);
}

int64_t varlen_backward(const Shape& shape, ScalarType type, std::span<const BackwardTask> tasks,
                        int cuda_device, const VarlenOperator& op) {
  kernels::check_shape(shape);
  for (const BackwardTask& task : tasks) kernels::check_task(shape, type, task);
  return Player(shape, type, cuda_device).backward(tasks, op);
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
