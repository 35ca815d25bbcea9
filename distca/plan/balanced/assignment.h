#pragma once
// The assignment of shards to servers while a scheduler searches. Loads and bytes are exact and are
// kept up to date with every move. One object belongs to one search on one thread.
//
//   Assignment state(request, layout);  // every query is computed where it lives
//   const Shard shard = state.shards(/*server=*/0)[0];
//   state.shrink(0, 0, {});  // server 0 gives the whole shard away
//   state.add(/*server=*/1, shard);
//
// A shard's home is the worker that holds its rows.

#include <cstdint>
#include <span>
#include <vector>

#include "distca/cost/task_price.h"
#include "distca/plan/homes.h"
#include "distca/plan/plan.h"

namespace distca {

/// Rows of one segment, with the keys that one server computes for them.
struct Shard {
  int64_t document = 0;
  Range q;           // positions in the document
  Range kv;          // positions in the document
  int32_t home = 0;  // index of the segment that holds q, in Homes::all()
  int64_t load = 0;  // TaskPrice of (q, kv)
  bool operator==(const Shard&) const = default;
};

/// The remainder of a shard after a part of it is taken out.
struct ShardRemainder {
  ShardRemainder() {}  // does not clear the shards: clearing takes as long as finding them
  union {
    Shard shards[4];  // the first `size`: rows below, rows above, keys before, keys after
  };
  size_t size = 0;
  std::span<const Shard> span() const { return {shards, size}; }
};

/// The cost of what a server fetches, or no longer fetches.
struct MoveCost {
  /// Bytes of Q, K, V and O, each times the price of its link (ps for a byte).
  int64_t price = 0;
  int64_t received = 0;  // bytes of Q, K, V
  int64_t kept = 0;      // bytes of memory, until backward
  /// True if a rank that would have to send some of it would exceed its send cap.
  bool blocked = false;
};

/// Counts: Q and O of every row that is computed away from home; K and V of every key, once for
/// each server that reads it and does not hold it; both as plan/accounting.h does. Ignores: LSE,
/// latency, backward. Time of a query or a change: the shards of one (server, document), plus the
/// document's segments.
class Assignment {
 public:
  /// At first, every segment is a shard of its worker, with all its keys. Borrows both arguments.
  Assignment(const PlanRequest& request, const Layout& layout);

  int num_servers() const { return static_cast<int>(shards_.size()); }
  const Homes& homes() const { return homes_; }
  int home_of(const Shard& shard) const { return homes_.all()[shard.home].worker; }
  /// Sorted by document, q.begin, kv.begin. Neighbours that one task can compute are one shard.
  const std::vector<Shard>& shards(int server) const { return shards_[server]; }
  /// The shards of one document.
  std::span<const Shard> shards(int server, int64_t document) const;

  const TaskPrice& task_price() const { return task_price_; }
  const std::vector<int64_t>& loads() const { return now_.load; }  // [server]
  int64_t load(int server) const { return now_.load[server]; }
  int64_t total_load() const;
  int64_t send_bytes(int rank) const { return now_.send[rank]; }        // Q, K, V
  int64_t receive_bytes(int rank) const { return now_.receive[rank]; }  // Q, K, V
  int64_t memory_bytes(int rank) const { return now_.memory[rank]; }
  int64_t price() const { return now_.price; }  // price of all bytes, as MoveCost::price

  /// A shard with all keys that its rows may see.
  Shard whole_context(int64_t document, const Range& q, int32_t home) const;
  Shard with_keys(int64_t document, const Range& q, const Range& kv, int32_t home) const;
  /// Returns the remainder of a shard without the keys `kv` of its rows `q`. Parts without pairs
  /// are left out.
  ShardRemainder without(const Shard& shard, const Range& q, const Range& kv) const;

  /// Returns true if some server of this one's node holds some of a document.
  bool is_near(int server, int64_t document) const {
    return std::ranges::any_of(homes_.of(document), [&](const HomeSegment& home) {
      return cluster_.node(home.worker) == cluster_.node(server);
    });
  }
  /// The cost of what the server would have to fetch for one more shard. `there` are its shards of
  /// the document.
  MoveCost to_add(int server, const Shard& shard, std::span<const Shard> there) const;
  MoveCost to_add(int server, const Shard& shard) const {
    return to_add(server, shard, shards(server, shard.document));
  }
  /// The cost of what the server would no longer fetch if shards(server)[index] were replaced by
  /// `remainder`, which are parts of it.
  MoveCost to_shrink(int server, size_t index, std::span<const Shard> remainder) const;

  /// Returns true if the caps on received bytes and on memory let a server have so much more.
  bool within_caps(int server, int64_t received, int64_t kept) const {
    const int64_t most_received = cluster_.max_receive_bytes, most_kept = cluster_.max_memory_bytes;
    return (most_received == 0 || receive_bytes(server) + received <= most_received) &&
           (most_kept == 0 || memory_bytes(server) + kept <= most_kept);
  }

  void add(int server, const Shard& shard);
  void shrink(int server, size_t index, std::span<const Shard> remainder);

  /// From here on, changes can be taken back with undo_trial(), until keep_trial().
  void begin_trial();
  void keep_trial() { in_trial_ = false; }
  void undo_trial();
  /// The servers whose shards the trial has changed.
  const std::vector<int>& touched() const { return touched_; }

  /// The highest end of the keys that the server reads of a document, or 0 if it reads none.
  int64_t keys_end(int server, int64_t document) const;
  std::vector<Task> tasks() const;

 private:
  struct Others {  // shards whose rows and keys a server reads anyway
    std::span<const Shard> run;
    const Shard* skip;
    std::span<const Shard> remainder;
  };
  template <typename Visit>
  void unread(Range tokens, Range Shard::*side, const Others& others, size_t next,
              const Visit& visit) const;
  /// Calls visit(home worker, cost) for each part of what `server` fetches for the shard alone.
  template <typename Visit>
  void fetched(int server, const Shard& shard, const Others& others, const Visit& visit) const;
  MoveCost move_cost(int server, const Shard& shard, const Others& others) const;
  void book(int server, const Shard& shard, const Others& others, int64_t sign);
  void touch(int server);
  void insert(int server, const Shard& shard);
  bool one_task(const Shard& lower, const Shard& upper) const;

  const Cluster& cluster_;
  const Mask mask_;
  const int64_t q_bytes_, o_bytes_, kv_bytes_;
  const TaskPrice task_price_;
  const int64_t price_inside_, price_between_;
  Homes homes_;
  std::vector<std::vector<Shard>> shards_;  // [server]
  struct Totals {
    std::vector<int64_t> load, send, receive, memory;  // [server]
    int64_t price = 0;
  };
  Totals now_;

  bool in_trial_ = false;
  std::vector<int> touched_;
  std::vector<std::vector<Shard>> shards_before_;  // shards of touched_ before the trial
  Totals before_;
};

}  // namespace distca
