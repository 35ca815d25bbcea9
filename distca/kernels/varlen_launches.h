#pragma once
// A list of tasks as launches of a variable-length attention operator of FlashAttention's kind:
// what one launch computes, which rows it reads keys from, where gradients of keys go. No
// device, no framework: the launches are played by runtime/varlen_attention.h.
//
// What such an operator can do (FlashAttention 2, ATen's _flash_attention_forward and _backward):
//   forward   sequence b: queries cu_seqlens_q[b] .. [b + 1], keys from key_starts[b] on,
//   keys_used[b]
//             of them; the starts need no order, so sequences share keys
//   backward  keys cu_seqlens_k[b] .. [b + 1]: no two sequences of a launch have a key in common,
//             because dK and dV are written, not added to
//   mask      aligned at the last query and the last key: query i of n sees key j of m when
//             j <= i + m - n (right_limited) and j >= i + m - n - window_left (window_left >= 0)
// So a task's keys end at the last one that its last query sees, and a task whose keys end before
// (a split-KV task) is cut into the queries up to there and those behind, which see all to the end.
// No row is in two parts: nothing is merged by LSE. Rows that see no key are in no launch.
//
// Keys of a task are read where they lie if they are consecutive rows of one buffer, aligned as the
// operator loads them; else they are gathered: each key once, however many tasks read it. Tasks
// whose keys lie in one buffer share a launch: in forward whatever lies between them, in backward
// (whose operator writes dK and dV of every row that it is given) only if they adjoin.
// A launch has at most kMostSequences sequences, those without queries among them: what is more
// goes into further launches, in the same order.
// Thread rule: pure functions.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "distca/base/integers.h"
#include "distca/base/scalar_type.h"
#include "distca/kernels/attention.h"

namespace distca::kernels {

/// Sequences of a launch, and heads: each is a coordinate of CUDA's grid, y or z, of 16 bits.
inline constexpr int64_t kMostSequences = 65535;

/// What an operator loads at once, in bytes.
inline constexpr int64_t kVarlenAlignment = 16;
bool loads_aligned(const Rows& rows, ScalarType type);

/// Whether the ranges' positions follow one another without a gap, as a launch needs them.
bool keys_are_consecutive(std::span<const KeyRange> keys);

/// Keys of the list, and the rows [row, row + keys.tokens) at which a launch has them.
struct PlacedKeys {
  KeyRange keys;
  int64_t row = 0;
};

/// Consecutive queries of one task.
struct QueryPiece {
  size_t task = 0;
  Range queries;  // positions in the document
  bool operator==(const QueryPiece&) const = default;
};

/// The memory of gathered keys, in place of the number of a key buffer.
inline constexpr int64_t kGathered = -1;

struct VarlenLaunch {
  int64_t buffer = 0;  // index in TaskList::keys, or kGathered
  Range key_rows;  // the rows of it that the operator is given; starts count from key_rows.begin
  bool right_limited = false;
  int64_t window_left = -1;           // tokens; -1 = unlimited
  std::vector<QueryPiece> pieces{};   // the rows of Q, one after another
  std::vector<int32_t> cu_seqlens_q;  // [sequences + 1]
  std::vector<int32_t> key_starts;    // [sequences + 1]; backward: cu_seqlens_k
  std::vector<int32_t> keys_used;     // [sequences]
  int64_t max_queries = 0;
  int64_t max_keys = 0;  // as the operator is to be told: at least the longest sequence's
  std::vector<PlacedKeys>
      gradients{};  // backward: where dK, dV are added; rows from key_rows.begin

  int64_t sequences() const { return static_cast<int64_t>(keys_used.size()); }
  int64_t query_rows() const { return cu_seqlens_q.back(); }
};

/// Whoever plays the launches makes memory of gathered_rows() keys and copies `gathered` there.
struct VarlenPlan {
  std::vector<PlacedKeys> gathered{};
  std::vector<VarlenLaunch> launches{};

  int64_t gathered_rows() const {
    return gathered.empty() ? 0 : gathered.back().row + gathered.back().keys.tokens;
  }
};

/// `type`: of Q, K, V. Every task's keys are consecutive (a CHECK).
VarlenPlan plan_forward_launches(ScalarType type, const TaskList& list,
                                 int64_t most_sequences = kMostSequences);

/// Neighbouring shards of a document, the one's queries ending where the other's begin, become one
/// sequence; keys of a launch that no sequence reads become sequences without queries.
VarlenPlan plan_backward_launches(ScalarType type, const TaskList& list,
                                  int64_t most_sequences = kMostSequences);

}  // namespace distca::kernels
