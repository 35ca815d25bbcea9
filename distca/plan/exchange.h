#pragma once
// The rows that one rank sends, receives and computes in a plan. They are a pure function of (plan,
// rank), which takes time proportional to its output, never workers^2.
//
//   const PlanIndex index(plan);  // borrows the plan
//   const RankExchange exchange = index.exchange(rank);
//   for (const PeerTransfer& to : exchange.sends) fmt::print("{}: {}\n", to.peer, to.q_tokens);
//
// Rows. A worker's local tensors hold its segments one after another, and `row` counts the local
// tokens. A message from rank a to rank b carries the Q rows of `q`, then the K rows and then the V
// rows of `kv`, each in the order of its list. Buffer 0 of a server is its own local tensors.
// Buffer i + 1 is what it received from receives[i].
//
// Split-KV. Several tasks, on one server or on several, may share a query row, each with a part of
// its keys. For each row that a server has received, it merges the results of its own tasks and
// sends one O and LSE. The home merges what it has computed itself and what has come home. `merges`
// names the rows of these merges. All other rows have one result, which is written directly to its
// place.
//
// Any thread may use a PlanIndex; the other types are plain values.

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "distca/plan/homes.h"
#include "distca/plan/plan.h"

namespace distca {

/// Contiguous tokens of a document, and the place where they lie at home.
struct RowRange {
  int64_t document = 0;
  Range tokens;             // positions in the document
  int64_t row = 0;          // row of the first token, in the home's local tensors
  int64_t message_row = 0;  // row of the first token, among the message's Q rows or K and V rows
  bool operator==(const RowRange&) const = default;
};

/// All that travels in forward from this rank to one peer, or from one peer to this rank. Backward
/// mirrors it: dO, LSE, delta of the q rows go to the server, and dQ, dK, dV of the rows come back.
struct PeerTransfer {
  int peer = 0;
  /// Both lists are sorted by (document, begin) and disjoint, so a key token travels once to a
  /// server.
  std::vector<RowRange> q;
  std::vector<RowRange> kv;
  int64_t q_tokens = 0;   // tokens of q
  int64_t kv_tokens = 0;  // tokens of kv
  bool operator==(const PeerTransfer&) const = default;
};

/// Contiguous rows in one buffer of a server.
struct BufferRows {
  int32_t buffer = 0;    // 0 is the local tensors, i + 1 is what receives[i] brought
  int64_t row = 0;       // the first row, among the buffer's Q rows or its K and V rows
  int64_t position = 0;  // position of the first row's token in its document
  int64_t tokens = 0;    // number of rows
  Range positions() const { return {position, position + tokens}; }  // in the document
  bool operator==(const BufferRows&) const = default;
};

/// One task of this server, with the places of its rows.
struct ServerTask {
  int64_t task = 0;  // index in Plan::tasks
  BufferRows q;
  std::vector<BufferRows> kv;  // ascending position; together exactly Task::kv
  /// True if its O and LSE are parts of merges, false if they are the final result of its rows.
  bool partial = false;
  bool operator==(const ServerTask&) const = default;
};

/// One result (O and LSE) for the rows of a merge. It covers a part of their keys, or all of them.
struct MergePart {
  /// True if the result comes home from the peer of sends[index], false if it is that of
  /// tasks[index].
  bool arrived = false;
  int32_t index = 0;  // in `tasks` or in `sends`
  /// The first row: in the task's queries, or in the Q rows of the message.
  int64_t row = 0;
  bool operator==(const MergePart&) const = default;
};

/// Rows whose results come from the same parts. Rows that a single partial task computes have only
/// one part.
struct RowMerge {
  int32_t buffer = 0;  // numbered as in BufferRows
  int64_t row = 0;     // the first row, among the buffer's Q rows
  int64_t tokens = 0;  // number of rows
  /// In the order of summation: tasks by ascending kv.begin, then (only at home) servers by
  /// ascending rank.
  std::vector<MergePart> parts;
  bool operator==(const RowMerge&) const = default;
};

/// All that one rank exchanges and computes under the plan.
struct RankExchange {
  int64_t local_tokens = 0;  // tokens at home on this rank
  /// The transfers to servers, and those from homes. Peers ascend, no rank is its own peer, and no
  /// transfer is empty. In `receives`, RowRange::row is the row at the sender.
  std::vector<PeerTransfer> sends;
  std::vector<PeerTransfer> receives;
  std::vector<ServerTask> tasks;  // tasks of this rank as a server, in the plan's order
  std::vector<RowMerge> merges;   // ascending (buffer, row), disjoint; mostly none
  bool operator==(const RankExchange&) const = default;
};

/// Lookup tables over one plan, which the exchanges of all ranks share. Borrows the plan, which
/// must be valid (plan/validate.h) and outlive the index.
class PlanIndex {
 public:
  explicit PlanIndex(const Plan& plan);
  /// The exchange of one rank. Time: proportional to its output.
  RankExchange exchange(int rank) const;

 private:
  struct Need {  // tokens that one server reads of one document
    int64_t document;
    std::vector<Range> q;   // disjoint, ascending
    std::vector<Range> kv;  // disjoint, ascending
  };
  struct Read {
    Range tokens;
    int server;
  };
  struct Reads {          // tokens that all servers read of one document
    std::vector<Read> q;  // cut at segments; ascending begin, so those of a segment lie together
    /// Ascending begin. It is used as a binary tree: the middle of a range is its root.
    std::vector<Read> keys;
    std::vector<int64_t> reach;  // [root in `keys`] highest end in its tree

    int64_t fill_reach(size_t begin, size_t end);
    /// Calls visit(read) for each of keys[begin, end) that has some of `tokens`.
    template <typename Visit>
    void for_each_keys(size_t begin, size_t end, const Range& tokens, const Visit& visit) const;
  };

  std::span<const Task> tasks_of(int server) const {
    return std::ranges::equal_range(plan_.tasks, server, {}, &Task::server);
  }
  std::vector<Need> needs(int server) const;
  std::vector<PeerTransfer> sends(int rank) const;
  std::vector<PeerTransfer> receives(int rank) const;
  bool any_row_shared() const;

  const Plan& plan_;
  const Homes homes_;
  std::vector<Reads> reads_;  // [document]
  bool rows_shared_ = false;  // true if some query row has several tasks
};

}  // namespace distca
