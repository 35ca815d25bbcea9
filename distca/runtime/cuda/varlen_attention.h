#pragma once
// These functions compute a list of tasks through a variable-length attention operator. They play
// the launches of kernels/varlen_launches.h with ATen tensors, on whatever device the operator
// runs.
//
// Keys are read where they lie, or are gathered once. Queries, dO and the results are wrapped where
// they lie if the pieces of a launch adjoin in one buffer; else they are packed. A broken shape is
// a CHECK.
//
// Threads. Calls on disjoint outputs may run at the same time if the operator allows it.

#include <array>
#include <cstdint>
#include <utility>

#include "distca/base/integers.h"
#include "distca/cost/pass.h"
#include "distca/kernels/attention.h"
#include "distca/kernels/varlen_launches.h"

namespace at {
class Tensor;
}

namespace distca {

class TaskLaunches;

/// Lists of a launch where the operator reads them: cu_seqlens_q, key_starts and keys_used, int32;
/// and in backward, where query_tile() is not 0, int32 [padded rows] the query of each padded row
/// (any one in padding), and fp32 [padded rows] infinity in padding, else 0.
using LaunchLists = std::array<at::Tensor, 5>;

/// The part of the output that backward reads: dO [query rows, H, E] in the type of q, LSE [H,
/// query rows], contiguous, and either delta [H, query rows] or, for an operator that asks for it
/// instead, any O whose row sum with dO is delta. The other is undefined.
struct OutputGradient {
  at::Tensor d_o, lse, delta, o;
};

/// A launch, its lists, and its q [query rows, H, D], k [key rows, G, D] and v [key rows, G, E].
struct LaunchInput {
  const kernels::VarlenLaunch& launch;
  const LaunchLists& lists;
  at::Tensor q, k, v;
};

/// An operator that computes one launch at a time.
class VarlenOperator {
 public:
  virtual ~VarlenOperator() = default;
  /// Limits of its launches.
  virtual kernels::LaunchLimits limits() const { return {}; }
  /// Rows of a block of queries in backward, if it takes delta: the padded rows of a sequence begin
  /// at a block, those of sequence b at round_down(cu_seqlens_q[b] + b * tile, tile), of
  /// padded_rows() in all. 0 if it asks for O.
  virtual int64_t query_tile(const kernels::VarlenLaunch&) const { return 0; }
  /// Returns O [query rows, H, E] in the type of q, and LSE [H, query rows] in the accumulator's
  /// type. `place`, if defined, is where O belongs; an operator that can write there returns it.
  virtual std::pair<at::Tensor, at::Tensor> forward(const LaunchInput& input,
                                                    const at::Tensor& place) const = 0;
  /// Returns dQ, dK and dV in the shapes of q, k and v, written where a sequence of the launch has
  /// rows.
  virtual std::array<at::Tensor, 3> backward(const LaunchInput& input,
                                             const OutputGradient& of_o) const = 0;
};

/// Rows of so many sequences that have this many rows together, if each begins at a block of
/// `tile`.
constexpr int64_t padded_rows(int64_t rows, int64_t sequences, int64_t tile) {
  return round_down(rows + tile * (sequences + 1) - 1, tile);
}

/// Makes the launches of one pass, for the calls that get them.
void varlen_prepare(const kernels::Shape& shape, ScalarType type, const kernels::TaskList& list,
                    int cuda_device, const VarlenOperator& op, Pass pass, TaskLaunches* launches);
/// Computes O and LSE. The keys of every task must be consecutive. `cuda_device` says where all
/// pointers live; -1 is the CPU. Returns the bytes that were copied: gathered keys, packed rows,
/// and O and LSE that were put where they belong. `launches` are those of earlier calls with the
/// same tasks and pass; with null, they are made for this call.
int64_t varlen_forward(const kernels::Shape& shape, ScalarType type, ScalarType o_type,
                       const kernels::TaskList& list, int cuda_device, const VarlenOperator& op,
                       TaskLaunches* launches = nullptr);
/// Adds gradients to dq, dk and dv, launch after launch: the same tasks give the same order.
/// Returns the bytes that were copied, as varlen_forward does.
int64_t varlen_backward(const kernels::Shape& shape, ScalarType type, const kernels::TaskList& list,
                        int cuda_device, const VarlenOperator& op,
                        TaskLaunches* launches = nullptr);

/// Does what kernels::output_from_delta does, on any device: puts an O like d_o into `o`. d_o is
/// [rows, H, E], and delta is [rows, H, 1] in the accumulator's type.
void aten_output_from_delta(const at::Tensor& d_o, const at::Tensor& delta, at::Tensor o);

}  // namespace distca
