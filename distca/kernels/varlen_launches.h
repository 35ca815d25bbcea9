#pragma once
// Turns a list of tasks into launches of a variable-length attention operator of FlashAttention's
// kind: what a launch computes, from which rows it reads keys, and where it adds the gradients of
// keys. It needs no device and no framework; runtime/cuda/varlen_attention.h plays the launches.
//
//     const VarlenPlan plan = plan_forward_launches(ScalarType::kBFloat16, list);
//     // copy plan.gathered, then call the operator for every launch of plan.launches
//
// What such an operator can do (FlashAttention 2, ATen's _flash_attention_forward and _backward):
//   forward   sequence b: queries cu_seqlens_q[b] .. [b + 1], keys_used[b] keys from key_starts[b]
//             on; the starts need no order, so sequences may share keys
//   backward  sequence b: keys cu_seqlens_k[b] .. [b + 1]; no two sequences of a launch have a key
//             in common, because dK and dV are written, not added to
//   mask      aligned at the last query and the last key: query i of n sees key j of m if
//             j <= i + m - n (right_limited) and j >= i + m - n - window_left (window_left >= 0)
// Therefore the keys that a launch gets for a task must end at the last key that its last query
// sees. If a task's keys end earlier (a split-KV task), it is cut in two: the queries up to that
// key, and the queries behind it, which see all keys to the end. No row is in two parts, so nothing
// must be merged by LSE. Rows that see no key are in no launch.
//
// The keys of a task are read where they lie if they are consecutive rows of one buffer and aligned
// as the operator loads them. Otherwise they are gathered; each key is gathered once, however many
// tasks read it. In forward, tasks whose keys lie in the same buffer share a launch, whatever lies
// between their keys. In backward, whose operator writes dK and dV of every row that it is given,
// they do so only if their keys adjoin. A launch has at most kMostSequences sequences, including
// those without queries; further ones go into further launches, in the same order.
//
// Lengths. The operator's grid has blocks for the longest sequence of a launch, for each of its
// sequences and heads: for its queries in forward, for its keys in backward. So sequences share a
// launch only if they are of one class of lengths: up to LaunchLimits::short_rows rows, up to 4
// times as many, up to 16 times, and so on. In backward, the operator makes fp32 memory for dQ in
// which each sequence has up to kPaddingRows rows more than it has queries, also one without
// queries; so a launch with few queries has few sequences.
//
// Thread rule: pure functions.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "distca/base/integers.h"
#include "distca/base/scalar_type.h"
#include "distca/kernels/attention.h"

namespace distca::kernels {

/// The most sequences of a launch, and the most heads. Each is a coordinate of CUDA's grid (y or
/// z), which has 16 bits.
inline constexpr int64_t kMostSequences = 65535;

/// Limits that divide sequences that could share a launch.
struct LaunchLimits {
  int64_t sequences = kMostSequences;  // the most sequences of a launch
  int64_t short_rows = 512;            // the most rows of a sequence of the first class of lengths
  /// The most rows of padding of a backward launch that has fewer queries than this.
  int64_t padding_rows = 65536;
};
/// The limits of FlashAttention 4's launches. Above so many sequences, its kernels want tables of
/// the sequences' blocks, for which they would be compiled once more.
inline constexpr LaunchLimits kFlash4Limits{.sequences = 256};
/// Rows of padding that the operator's backward makes for a sequence, so that no block checks where
/// it ends.
inline constexpr int64_t kPaddingRows = 128;
/// The class of a sequence of so many rows: 0, 1, ...
int length_class(int64_t rows, const LaunchLimits& limits = {});

/// Bytes that an operator loads at once.
inline constexpr int64_t kVarlenAlignment = 16;
/// Returns true if an operator can read these rows where they lie.
bool loads_aligned(const Rows& rows, ScalarType type);
/// [key buffer] True if it can read K and V there. The launches of a list depend on its tasks and
/// on this, and on no other address.
std::vector<bool> aligned_keys(ScalarType type, const TaskList& list);

/// Returns true if the positions of the ranges follow one another without a gap, as a launch needs
/// them.
bool keys_are_consecutive(std::span<const KeyRange> keys);

/// Returns true if one of ATen's fused operators computes the task on a CUDA device
/// (runtime/cuda/cuda_attention.h says which).
bool is_fused(const Shape& shape, ScalarType type, const Task& task);

/// Rows [from, from + tokens) of a buffer of the list, which are rows [row, row + tokens) of a
/// launch.
struct RowRun {
  int64_t buffer = 0;
  int64_t from = 0;
  int64_t tokens = 0;
  int64_t row = 0;
};

/// Consecutive queries of one task.
struct QueryPiece {
  size_t task = 0;
  Range queries;  // positions in the document
  bool operator==(const QueryPiece&) const = default;
};

/// Stands for the memory of gathered keys where the number of a key buffer is expected.
inline constexpr int64_t kGathered = -1;

/// One call of the operator.
struct VarlenLaunch {
  int64_t buffer = 0;  // index in TaskList::keys, or kGathered
  /// The rows of the buffer that the operator is given. Starts count from key_rows.begin.
  Range key_rows;
  bool right_limited = false;         // see "mask" above
  int64_t window_left = -1;           // tokens, fewer than max_keys. -1 means no limit.
  std::vector<QueryPiece> pieces{};   // the rows of Q, one piece after another
  std::vector<int32_t> cu_seqlens_q;  // [sequences + 1]
  std::vector<int32_t> key_starts;    // [sequences + 1]; in backward cu_seqlens_k
  std::vector<int32_t> keys_used;     // [sequences]
  int64_t max_queries = 0;            // queries of the longest sequence
  /// The number of keys that the operator is given: at least those of the longest sequence.
  int64_t max_keys = 0;
  /// Backward: where dK and dV are added; rows count from key_rows.begin.
  std::vector<RowRun> gradients{};

  int64_t sequences() const { return static_cast<int64_t>(keys_used.size()); }
  int64_t query_rows() const { return cu_seqlens_q.back(); }
  // Rows of a sequence, as cu_seqlens_q and key_starts count them.
  Range queries_of(int64_t b) const { return {cu_seqlens_q[b], cu_seqlens_q[b + 1]}; }
  Range keys_of(int64_t b) const { return {key_starts[b], key_starts[b] + keys_used[b]}; }
};

/// The rows of a launch's pieces in the query buffers; those that adjoin in a buffer are one run.
std::vector<RowRun> query_runs(const TaskList& list, const VarlenLaunch& launch);

/// All launches of a list. Whoever plays them makes memory for gathered_rows() keys, and copies the
/// keys of `gathered` there.
struct VarlenPlan {
  std::vector<RowRun> gathered{};
  std::vector<VarlenLaunch> launches{};

  int64_t gathered_rows() const {
    return gathered.empty() ? 0 : gathered.back().row + gathered.back().tokens;
  }
};

/// `type` is that of Q, K and V. The keys of every task must be consecutive (a CHECK).
VarlenPlan plan_forward_launches(ScalarType type, const TaskList& list,
                                 const LaunchLimits& limits = {});

/// Plans the backward likewise. A sequence's class is that of its keys, or of its queries if they
/// are more. Neighbouring shards of a document, where the queries of one end and those of the other
/// begin, become one sequence. Keys of a launch that no sequence reads become sequences without
/// queries.
VarlenPlan plan_backward_launches(ScalarType type, const TaskList& list,
                                  const LaunchLimits& limits = {});

}  // namespace distca::kernels
