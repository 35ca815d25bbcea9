#pragma once
// A cluster says which ranks hold tokens, which serve attention, how they are joined, how much each
// may hold, and how long messages take on the wire. All figures are integers, so that every rank
// computes the same plan. A cluster is a plain value. Any thread may call the functions.
//
//   Cluster cluster = Cluster::in_place(4);  // four workers, which also serve
//   cluster.capacity.push_back(2);           // and a dedicated server with twice a worker's load
//   const int64_t ns = transfer_ns(cluster.link(0, 4), /*messages=*/1, /*bytes=*/1 << 20);

#include <cstdint>
#include <vector>

#include "distca/cost/link_price.h"
#include "distca/cost/memory_price.h"

namespace distca {

struct Cluster {
  /// Ranks 0 .. num_workers - 1 are the workers: they hold weights and tokens.
  int num_workers = 1;
  /// [num_servers >= num_workers] The share of the total load that each server should get, in any
  /// unit. Server s is rank s. 0 means that the worker does not serve. Capacities differ where
  /// servers are unequally fast or have unequal other work (even_capacities in speeds.h).
  std::vector<int64_t> capacity = {1};
  /// How many neighbouring ranks share a node: ranks with equal rank / ranks_per_node do. With 0,
  /// every rank is a node of its own. Set it where links inside a node are faster than those
  /// between nodes.
  int ranks_per_node = 0;
  Link inside;         // between two ranks of one node
  Link between;        // between two ranks of different nodes
  MemoryPrice memory;  // bytes of a token; if all are 0, memory is not counted

  // Caps, where 0 stands for none. A nano-batch that cannot meet a cap is refused with the cap's
  // name and the numbers.
  /// The most tokens of one nano-batch that a worker may hold. A worker may exceed it by less than
  /// one block of 128, because documents are cut only at multiples of 128.
  int64_t max_tokens_per_worker = 0;
  int64_t max_send_bytes = 0;     // Q, K, V that a rank sends; one layer, forward
  int64_t max_receive_bytes = 0;  // Q, K, V that a rank receives; one layer, forward
  int64_t max_memory_bytes = 0;   // tokens of a rank, as `memory` prices them

  int num_servers() const { return static_cast<int>(capacity.size()); }
  int node(int rank) const { return ranks_per_node > 0 ? rank / ranks_per_node : rank; }
  const Link& link(int from, int to) const { return node(from) == node(to) ? inside : between; }
  /// A cluster in which all ranks are workers that serve equally.
  static Cluster in_place(int num_workers) {
    Cluster cluster;
    cluster.num_workers = num_workers;
    cluster.capacity.assign(num_workers, 1);
    return cluster;
  }
  bool operator==(const Cluster&) const = default;
};

}  // namespace distca
