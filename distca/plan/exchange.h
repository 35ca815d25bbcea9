#pragma once
// What one rank sends, receives and computes in a plan: a pure function of (plan, rank), in time
// proportional to its output, never workers^2. Any thread.
//
// Rows. A worker's local tensors hold its segments one after another; `row` counts local tokens. A
// message from rank a to rank b carries the Q rows of `q`, then the K rows and the V rows of `kv`,
// each in the order listed. Buffer 0 of a server is its own local tensors; buffer i + 1 is what it
// received from receives[i].
//
// Split-KV. Several tasks, on one server or on several, may share a query row, each with a
// part of its keys. A server sends one O and LSE for each row it received, merged from its own
// tasks; the home merges what it computed itself and what came home. `merges` names the rows; all
// other rows have one result, which is written where it belongs.

#include <cstdint>
#include <vector>

#include "distca/plan/plan.h"

namespace distca {

/// Contiguous tokens of a document, and where they lie at home.
struct RowRange {
  int64_t document = 0;
  Range tokens;     // positions in the document
  int64_t row = 0;  // first row in the home worker's local tensors
  bool operator==(const RowRange&) const = default;
};

/// All that travels between this rank and one peer in one direction, in forward.
/// Backward mirrors it: dO, LSE, delta of the q rows go to the server; dQ, dK, dV of these rows
/// come back.
struct PeerTransfer {
  int peer = 0;
  std::vector<RowRange> q;  // sorted by (document, begin), disjoint
  std::vector<RowRange>
      kv;  // sorted by (document, begin), disjoint: each key token once per server
  int64_t q_tokens = 0;
  int64_t kv_tokens = 0;
  bool operator==(const PeerTransfer&) const = default;
};

/// Rows of one buffer of a server.
struct BufferRows {
  int32_t buffer = 0;    // 0: local tensors; i + 1: received from receives[i]
  int64_t row = 0;       // within the buffer's Q rows, or its K and V rows
  int64_t position = 0;  // of the first row in its document
  int64_t tokens = 0;
  bool operator==(const BufferRows&) const = default;
};

/// One task of this server, its rows resolved.
struct ServerTask {
  int64_t task = 0;  // index in Plan::tasks
  BufferRows q;
  std::vector<BufferRows> kv;  // ascending position; together exactly Task::kv
  bool partial = false;        // its O and LSE are parts of merges; false: they are the rows' own
  bool operator==(const ServerTask&) const = default;
};

/// A result (O and LSE) of the rows of a merge: over a part of their keys, or over all of them.
struct MergePart {
  bool arrived = false;  // false: of tasks[index]; true: what comes home from sends[index]
  int32_t index = 0;
  int64_t row = 0;  // first row: within the task's queries, or within the message's Q rows
  bool operator==(const MergePart&) const = default;
};

/// Rows that have the same parts. One part alone: rows that only a partial task computes.
struct RowMerge {
  int32_t buffer = 0;  // as in BufferRows
  int64_t row = 0;     // within the buffer's Q rows
  int64_t tokens = 0;
  std::vector<MergePart> parts;  // in the order of summation: tasks by ascending kv.begin, then
                                 // (at home only) servers by ascending rank
  bool operator==(const RowMerge&) const = default;
};

struct RankExchange {
  int64_t local_tokens = 0;
  std::vector<PeerTransfer> sends;     // ascending peer, never this rank, never empty
  std::vector<PeerTransfer> receives;  // likewise; RowRange::row is the row at the sender
  std::vector<ServerTask> tasks;       // what this rank computes as a server, in Plan order
  std::vector<RowMerge> merges;        // ascending (buffer, row), disjoint; mostly none
  bool operator==(const RankExchange&) const = default;
};

/// Lookup tables over one plan, shared by all ranks' exchanges. Borrows the plan, which must be
/// valid (plan/validate.h) and outlive the index.
class PlanIndex {
 public:
  explicit PlanIndex(const Plan& plan);
  RankExchange exchange(int rank) const;

 private:
  struct Placed {  // a segment and where it lies
    Range tokens;
    int worker;
    int64_t row;
  };
  struct Need {  // what one server reads of one document
    int64_t document;
    std::vector<Range> q;   // disjoint, ascending
    std::vector<Range> kv;  // disjoint, ascending
  };
  struct Read {
    Range tokens;
    int server;
  };
  struct Reads {             // of one document, by all servers
    std::vector<Read> q;     // cut at segments, ascending begin: those of a segment lie together
    std::vector<Read> keys;  // ascending begin: a binary tree, the middle of a range its root
    std::vector<int64_t> reach;  // [root in `keys`] highest end in its tree

    int64_t fill_reach(size_t begin, size_t end);
    /// visit(read) for each of keys[begin, end) that has some of `tokens`.
    template <typename Visit>
    void for_each_keys(size_t begin, size_t end, const Range& tokens, const Visit& visit) const;
  };

  std::vector<Need> needs(int server) const;
  std::vector<PeerTransfer> sends(int rank) const;
  std::vector<PeerTransfer> receives(int rank) const;
  bool any_row_shared() const;
  /// visit(segment, part): the parts of `tokens` that lie in one segment each, ascending.
  template <typename Visit>
  void for_each_part(int64_t document, const Range& tokens, const Visit& visit) const;

  const Plan& plan_;
  std::vector<std::vector<Placed>> segments_;  // [document] ascending position
  std::vector<Reads> reads_;                   // [document]
  std::vector<Range> tasks_of_server_;         // [rank] range of Plan::tasks
  bool rows_shared_ = false;                   // some query row has several tasks
};

}  // namespace distca
