#include "distca/runtime/cuda/varlen_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "distca/base/error.h"
#include "distca/comm/aten_types.h"
#include "distca/kernels/rows.h"
#include "distca/kernels/task_list.h"
#include "distca/runtime/cuda/played_launches.h"
#include "distca/runtime/cuda/scratch_tensors.h"
#include "distca/runtime/row_moves.h"
#include "distca/runtime/tensor_rows.h"

namespace distca {
namespace {

using kernels::KeyBuffer;
using kernels::kGathered;
using kernels::QueryBuffer;
using kernels::RowRun;
using kernels::Rows;
using kernels::Shape;
using kernels::TaskList;
using kernels::VarlenLaunch;

}  // namespace

/// A list that is played; its first members are the caller's.
class VarlenPlayer {
 public:
  const Shape& shape;
  const ScalarType type;
  const TaskList& list;
  const int cuda_device;
  const VarlenOperator& op;
  TaskLaunches* const kept_launches;  // null if they are made for this call
  const ScalarType accumulator = kernels::accumulator_type(type);
  const at::Device device = aten_device(cuda_device);
  c10::InferenceMode no_autograd{};
  c10::DeviceGuard device_guard{device};
  TaskLaunches own_launches{};
  RowMoves moves{cuda_device};
  ScratchTensors scratch{};
  at::Tensor gathered_k{}, gathered_v{};

  void prepare(Pass pass) {
    pass == Pass::kForward ? made_by(kernels::plan_forward_launches) : made_for_backward();
  }

  int64_t forward(ScalarType o_type) {
    const Made& made = made_by(kernels::plan_forward_launches);
    fill_rows_without_keys(made, o_type);
    const size_t count = made.launches.size();
    std::vector<at::Tensor> q(count);
    want_keys(made);
    for (size_t i = 0; i < count; ++i)
      want(made.launches[i], &QueryBuffer::q, shape.head_dim_qk, q[i]);
    scratch.make(device);
    gather(made);
    for (size_t i = 0; i < count; ++i)
      pack(made.launches[i].queries, &QueryBuffer::q, shape.head_dim_qk, q[i]);
    moves.play();
    std::vector<at::Tensor> results;  // until they have been put in their places
    for (size_t i = 0; i < count; ++i) {
      const PlayedLaunch& played = made.launches[i];
      at::Tensor place;  // where the operator may write O
      if (o_type == type && lie_in_place(played.queries, &QueryBuffer::o, shape.head_dim_v))
        place = queries(played.queries[0], &QueryBuffer::o, type, shape.head_dim_v);
      const auto [o, lse] = op.forward(input(played, q[i]), place);
      results.push_back(o);
      for (const RowRun& run : played.queries) {
        if (o.is_same(place)) break;
        moves.copy(queries(run, &QueryBuffer::o, o_type, shape.head_dim_v),
                   rows_at(o, run.row, run.tokens));
      }
      put_lse(played, lse, results);
    }
    moves.play();
    return moves.copied_bytes();
  }

  int64_t backward() {
    const Made& made = made_for_backward();
    const size_t count = made.launches.size();
    std::vector<at::Tensor> q(count), lse(count);
    Gradients of_o;
    want_keys(made);
    for (size_t i = 0; i < count; ++i) {
      want(made.launches[i], &QueryBuffer::q, shape.head_dim_qk, q[i]);
      want(made.launches[i], &QueryBuffer::lse, 1, lse[i]);
    }
    want_gradients(made, of_o);
    scratch.make(device);
    gather(made);
    for (size_t i = 0; i < count; ++i) {
      pack(made.launches[i].queries, &QueryBuffer::q, shape.head_dim_qk, q[i]);
      pack(made.launches[i].queries, &QueryBuffer::lse, 1, lse[i]);
    }
    pack_gradients(made, of_o);
    moves.play();
    if (of_o.o.defined()) aten_output_from_delta(of_o.d_o, of_o.delta, of_o.o);
    int64_t first = 0;  // row of the launch, among those of all
    for (size_t i = 0; i < count; ++i) {
      const PlayedLaunch& played = made.launches[i];
      const int64_t rows = played.launch.query_rows();
      OutputGradient gradient{.d_o = rows_at(of_o.d_o, first, rows),
                              .lse = heads_first(lse[i]).contiguous()};
      if (takes_delta(played)) {
        gradient.delta = heads_first(rows_at(of_o.delta, first, rows));
      } else {
        gradient.o = rows_at(of_o.o, first, rows);
      }
      add(played, op.backward(input(played, q[i]), gradient));
      first += rows;
    }
    return moves.copied_bytes();
  }

 private:
  using Made = TaskLaunches::Made;
  /// dO, delta and, if an operator asks for it, O of all launches, one after another.
  struct Gradients {
    at::Tensor d_o, delta, o;
  };

  template <typename Plan>
  const Made& made_by(const Plan& plan, const QueryTile& query_tile = nullptr) {
    DISTCA_CHECK(shape.num_heads <= kernels::kMostSequences, "{} heads: a launch has at most {}",
                 shape.num_heads, kernels::kMostSequences);
    TaskLaunches& launches = kept_launches == nullptr ? own_launches : *kept_launches;
    std::vector<bool> aligned = kernels::aligned_keys(type, list);
    std::shared_ptr<const Made>& made = launches.made_;
    if (!made || made->aligned != aligned) {
      made = std::make_shared<const Made>(list, plan(type, list, op.limits()), std::move(aligned),
                                          query_tile, device);
      ++launches.times_made_;
    } else {
      made->follow(device);
    }
    return *made;
  }

  const Made& made_for_backward() {
    return made_by(kernels::plan_backward_launches,
                   [this](const VarlenLaunch& launch) { return op.query_tile(launch); });
  }
  static bool takes_delta(const PlayedLaunch& played) { return played.lists[3].defined(); }

  // --- rows where they lie
  at::Tensor queries(const RowRun& run, Rows QueryBuffer::*field, ScalarType scalar,
                     int64_t dim) const {
    const Rows rows = kernels::shifted(list.queries[run.buffer].*field, scalar, run.from, 0);
    return tensor_of(rows, scalar, run.tokens, shape.num_heads, dim, cuda_device);
  }
  at::Tensor keys(const RowRun& run, Rows KeyBuffer::*field, ScalarType scalar, int64_t dim) const {
    const Rows rows = kernels::shifted(list.keys[run.buffer].*field, scalar, run.from, 0);
    return tensor_of(rows, scalar, run.tokens, shape.num_kv_heads, dim, cuda_device);
  }
  /// [H, rows] of [rows, H, 1].
  at::Tensor heads_first(const at::Tensor& numbers) const {
    return tensor_of(numbers.data_ptr(), accumulator, {numbers.size(1), numbers.size(0)},
                     {numbers.stride(1), numbers.stride(0)}, cuda_device);
  }

  // --- rows that are packed
  void want_keys(const Made& made) {
    if (made.gathered.empty()) return;
    const int64_t rows = made.gathered_rows, heads = shape.num_kv_heads;
    scratch.want(gathered_k, aten_type(type), {rows, heads, shape.head_dim_qk});
    scratch.want(gathered_v, aten_type(type), {rows, heads, shape.head_dim_v});
  }
  void gather(const Made& made) {
    for (const RowRun& run : made.gathered) {
      moves.copy(rows_at(gathered_k, run.row, run.tokens),
                 keys(run, &KeyBuffer::k, type, shape.head_dim_qk));
      moves.copy(rows_at(gathered_v, run.row, run.tokens),
                 keys(run, &KeyBuffer::v, type, shape.head_dim_v));
    }
  }
  LaunchInput input(const PlayedLaunch& played, const at::Tensor& q) const {
    const VarlenLaunch& launch = played.launch;
    const int64_t first = launch.key_rows.begin, tokens = launch.key_rows.size();
    if (launch.buffer == kGathered)
      return {launch, played.lists, q, rows_at(gathered_k, first, tokens),
              rows_at(gathered_v, first, tokens)};
    const RowRun run{launch.buffer, first, tokens};
    return {launch, played.lists, q, keys(run, &KeyBuffer::k, type, shape.head_dim_qk),
            keys(run, &KeyBuffer::v, type, shape.head_dim_v)};
  }

  // LSE and delta, whose dim is 1, are in the accumulator's type and read one number at a time.
  // Head dims are multiples of 8 (kernels/task_list.cc).
  ScalarType type_of(int64_t dim) const { return dim == 1 ? accumulator : type; }
  /// Returns true if the rows of a launch can be read where they lie.
  bool lie_in_place(const std::vector<RowRun>& runs, Rows QueryBuffer::*field, int64_t dim) const {
    if (runs.size() != 1) return false;
    return dim == 1 || kernels::loads_aligned(list.queries[runs[0].buffer].*field, type);
  }
  /// [query rows, H, dim]: in place, or wanted.
  void want(const PlayedLaunch& played, Rows QueryBuffer::*field, int64_t dim, at::Tensor& rows) {
    if (lie_in_place(played.queries, field, dim)) {
      rows = queries(played.queries[0], field, type_of(dim), dim);
    } else {
      scratch.want(rows, aten_type(type_of(dim)),
                   {played.launch.query_rows(), shape.num_heads, dim});
    }
  }
  void want_gradients(const Made& made, Gradients& of_o) {
    int64_t rows = 0;
    for (const PlayedLaunch& played : made.launches) rows += played.launch.query_rows();
    if (rows == 0) return;
    const std::vector<int64_t> sizes = {rows, shape.num_heads, shape.head_dim_v};
    if (!std::ranges::all_of(made.launches, takes_delta))
      scratch.want(of_o.o, aten_type(type), sizes);
    if (gradients_lie_in_place(made)) {
      const RowRun& run = made.launches[0].queries[0];
      of_o.d_o = queries(run, &QueryBuffer::d_o, type, shape.head_dim_v);
      of_o.delta = queries(run, &QueryBuffer::delta, accumulator, 1);
      return;
    }
    scratch.want(of_o.d_o, aten_type(type), sizes);
    scratch.want(of_o.delta, aten_type(accumulator), {rows, shape.num_heads, 1});
  }
  bool gradients_lie_in_place(const Made& made) const {
    return made.launches.size() == 1 &&
           lie_in_place(made.launches[0].queries, &QueryBuffer::d_o, shape.head_dim_v);
  }
  void pack_gradients(const Made& made, const Gradients& of_o) {
    if (gradients_lie_in_place(made)) return;
    int64_t first = 0;
    for (const PlayedLaunch& played : made.launches) {
      const int64_t rows = played.launch.query_rows();
      copy_runs(played.queries, &QueryBuffer::d_o, shape.head_dim_v,
                rows_at(of_o.d_o, first, rows));
      copy_runs(played.queries, &QueryBuffer::delta, 1, rows_at(of_o.delta, first, rows));
      first += rows;
    }
  }
  /// Unless they lie in place.
  void pack(const std::vector<RowRun>& runs, Rows QueryBuffer::*field, int64_t dim,
            const at::Tensor& rows) {
    if (!lie_in_place(runs, field, dim)) copy_runs(runs, field, dim, rows);
  }
  void copy_runs(const std::vector<RowRun>& runs, Rows QueryBuffer::*field, int64_t dim,
                 const at::Tensor& rows) {
    for (const RowRun& run : runs)
      moves.copy(rows_at(rows, run.row, run.tokens), queries(run, field, type_of(dim), dim));
  }

  // --- results
  /// `lse` [H, query rows].
  void put_lse(const PlayedLaunch& played, const at::Tensor& lse, std::vector<at::Tensor>& kept) {
    const int64_t rows = played.launch.query_rows();
    // Runs move together where both sides have the same strides.
    const at::Tensor by_row = tensor_of(lse.data_ptr(), accumulator, {rows, shape.num_heads, 1},
                                        {lse.stride(1), lse.stride(0), 1}, cuda_device)
                                  .contiguous();
    kept.insert(kept.end(), {lse, by_row});
    for (const RowRun& run : played.queries) {
      moves.copy(queries(run, &QueryBuffer::lse, accumulator, 1),
                 rows_at(by_row, run.row, run.tokens));
    }
  }
  void add(const PlayedLaunch& played, const std::array<at::Tensor, 3>& gradients) {
    const auto& [dq, dk, dv] = gradients;
    std::vector<at::Tensor> kept;
    add_runs(played.queries, dq, played.queries_overlap, kept, [&](const RowRun& run) {
      return queries(run, &QueryBuffer::dq, accumulator, shape.head_dim_qk);
    });
    add_runs(played.launch.gradients, dk, played.gradients_overlap, kept, [&](const RowRun& run) {
      return keys(run, &KeyBuffer::dk, accumulator, shape.head_dim_qk);
    });
    add_runs(played.launch.gradients, dv, played.gradients_overlap, kept, [&](const RowRun& run) {
      return keys(run, &KeyBuffer::dv, accumulator, shape.head_dim_v);
    });
    moves.play();
  }
  template <typename To>
  void add_runs(const std::vector<RowRun>& runs, const at::Tensor& gradient, bool overlap,
                std::vector<at::Tensor>& kept, const To& to) {
    // Runs are added together where they have one type, so several of them are worth a conversion.
    const bool together = runs.size() > 1 && !overlap;
    const at::ScalarType sums = aten_type(accumulator);
    kept.push_back(together && gradient.scalar_type() != sums ? gradient.to(sums) : gradient);
    for (const RowRun& run : runs) {
      const at::Tensor rows = rows_at(kept.back(), run.row, run.tokens);
      together ? moves.add(to(run), rows) : void(to(run).add_(rows));
    }
  }

  void fill_rows_without_keys(const Made& made, ScalarType o_type) const {
    for (const RowRun& run : made.without_keys) {
      queries(run, &QueryBuffer::o, o_type, shape.head_dim_v).zero_();
      queries(run, &QueryBuffer::lse, accumulator, 1)
          .fill_(-std::numeric_limits<double>::infinity());
    }
  }
};

void varlen_prepare(const Shape& shape, ScalarType type, const TaskList& list, int cuda_device,
                    const VarlenOperator& op, Pass pass, TaskLaunches* launches) {
  if (list.tasks.empty()) return;
  VarlenPlayer{shape, type, list, cuda_device, op, launches}.prepare(pass);
}

int64_t varlen_forward(const Shape& shape, ScalarType type, ScalarType o_type, const TaskList& list,
                       int cuda_device, const VarlenOperator& op, TaskLaunches* launches) {
  kernels::check_forward(shape, type, o_type, list);
  if (list.tasks.empty()) return 0;
  return VarlenPlayer{shape, type, list, cuda_device, op, launches}.forward(o_type);
}

int64_t varlen_backward(const Shape& shape, ScalarType type, const TaskList& list, int cuda_device,
                        const VarlenOperator& op, TaskLaunches* launches) {
  kernels::check_backward(shape, list);
  if (list.tasks.empty()) return 0;
  return VarlenPlayer{shape, type, list, cuda_device, op, launches}.backward();
}

void aten_output_from_delta(const at::Tensor& d_o, const at::Tensor& delta, at::Tensor o) {
  // The norm in fp64: the square of no fp32 number overflows there, and none vanishes.
  at::Tensor norm =
      at::linalg_vector_norm(d_o, 2, at::IntArrayRef{-1}, /*keepdim=*/true, at::kDouble);
  at::threshold_(norm, 0, std::numeric_limits<double>::infinity());  // 0 where dO is 0
  at::mul_out(o, d_o, delta.div(norm).div_(norm));
}

}  // namespace distca
