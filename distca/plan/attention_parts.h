#pragma once
// Core attention of a layer step in parts, so that linear work of another nano-batch and its
// messages can be played between them. The tasks of a rank are put in an order, in which they are
// cut into kAttentionShares shares of about as many (query, key) pairs. A part is some consecutive
// shares. Large tasks are cut by query rows, which changes no bit of O.
//
//   const AttentionShares shares(exchange, Pass::kForward);
//   const AttentionPart first = shares.part({0, 4});
//
// Order. Tasks of received queries are called returned here, those of own queries with received
// keys kept, and the others home. In forward, returned tasks are in the first kSharesBeforeCombine
// shares, because only they write what a kCombine sends; as many home tasks as have room there come
// first, since they wait for no message. In backward, kept tasks write gradients of received keys,
// too, so a kCombine sends behind all shares. There kept tasks come first: they read keys that have
// been there since forward, or were sent early, and no message of this pass. Returned ones come
// last.
//
// Shares are a function of the exchange alone, so the ranks of a server have the same ones. They
// differ between servers, which does not matter to who waits for whom: operations that communicate
// stand at the same share on all ranks, whatever its tasks are.
//
// Plain values; any thread may read them.

#include <array>
#include <cstdint>
#include <vector>

#include "distca/base/integers.h"
#include "distca/cost/pass.h"
#include "distca/plan/attention_exchange.h"

namespace distca {

inline constexpr int kAttentionShares = 12;
/// In forward, a kCombine stands behind so many shares or more.
inline constexpr int kSharesBeforeCombine = kAttentionShares / 2;
/// Tasks are cut at multiples of so many query rows, counted from a task's first: blocks of kernels
/// stay whole.
inline constexpr int64_t kCutRows = 128;
/// A share has at least so many pairs, or none, but for the last one before the combine and the
/// last of all, so that starting it costs little of its time. The number was chosen by arithmetic,
/// not measured on a GPU.
inline constexpr int64_t kLeastSharePairs = int64_t{1} << 20;

/// Some queries of a task.
struct TaskPiece {
  int32_t task = 0;  // index in RankExchange::tasks
  Range queries;     // counted from the task's first one; not empty unless the task has none
  bool operator==(const TaskPiece&) const = default;
};

struct AttentionPart {
  std::vector<TaskPiece> pieces;
  int64_t pairs = 0;
};

/// True if the queries of the task were received, so its result is sent back.
inline bool is_returned(const ServerTask& task) { return task.q.buffer != 0; }
/// (query, key) pairs of a piece.
int64_t pairs_of(const AttentionExchange& exchange, const TaskPiece& piece);

class AttentionShares {
 public:
  /// A share has `least_pairs` pairs or more, or none (kLeastSharePairs says which may have fewer).
  /// Time: proportional to tasks and shares, but
  /// for a logarithm of a task's rows.
  AttentionShares(const AttentionExchange& exchange, Pass pass,
                  int64_t least_pairs = kLeastSharePairs);

  /// Some consecutive shares, with the pieces of a task that follow one another as one.
  AttentionPart part(const Range& shares) const;

 private:
  std::array<AttentionPart, kAttentionShares> shares_;
};

}  // namespace distca
