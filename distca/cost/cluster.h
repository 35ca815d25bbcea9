#pragma once
// Who holds tokens and who serves attention. Plain value, any thread.

#include <cstdint>
#include <vector>

namespace distca {

struct Cluster {
  int num_workers = 1;  // ranks that hold weights and tokens: ranks 0 .. num_workers - 1
  /// [num_servers >= num_workers] share of the total load each server should get; server s is rank
  /// s. 0 for a worker that does not serve.
  std::vector<int64_t> capacity = {1};
  /// Most tokens of one nano-batch a worker may hold, to within one block of 128 (cuts are coarse);
  /// 0: no cap.
  int64_t max_tokens_per_worker = 0;

  int num_servers() const { return static_cast<int>(capacity.size()); }
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
