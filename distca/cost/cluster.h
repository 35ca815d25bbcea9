#pragma once
// Who holds tokens, who serves attention, how they are joined and what each may hold. Plain value,
// any thread.

#include <cstdint>
#include <vector>

#include "distca/cost/memory_price.h"
#include "distca/cost/transfer_price.h"

namespace distca {

struct Cluster {
  int num_workers = 1;  // ranks that hold weights and tokens: ranks 0 .. num_workers - 1
  /// [num_servers >= num_workers] share of the total load each server should get; server s is rank
  /// s. 0 for a worker that does not serve.
  std::vector<int64_t> capacity = {1};
  /// Ranks r with equal r / ranks_per_node share a node; 0: every rank is a node of its own.
  int ranks_per_node = 0;
  Link inside;   // between two ranks of one node
  Link between;  // between two ranks of different nodes
  MemoryPrice memory;

  // Caps; 0: none. A nano-batch that cannot meet one is refused with its name and the numbers.
  /// Most tokens of one nano-batch a worker may hold, to within one block of 128 (cuts are coarse).
  int64_t max_tokens_per_worker = 0;
  int64_t max_send_bytes = 0;     // Q, K, V one rank sends: one layer, forward
  int64_t max_receive_bytes = 0;  // Q, K, V one rank receives: one layer, forward
  int64_t max_memory_bytes = 0;   // of one rank, as `memory` prices it

  int num_servers() const { return static_cast<int>(capacity.size()); }
  int node(int rank) const { return ranks_per_node > 0 ? rank / ranks_per_node : rank; }
  const Link& link(int from, int to) const { return node(from) == node(to) ? inside : between; }
  /// Every worker serves, all alike.
  static Cluster in_place(int num_workers) {
    Cluster cluster;
    cluster.num_workers = num_workers;
    cluster.capacity.assign(num_workers, 1);
    return cluster;
  }
  bool operator==(const Cluster&) const = default;
};

}  // namespace distca
