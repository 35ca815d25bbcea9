#pragma once
// Names of the keys of a run's store that more than one part reads or writes. run_store.h and
// heartbeat.h say what they hold; `prefix` is Rendezvous::prefix. Pure.

#include <string>
#include <vector>

namespace distca {

inline constexpr const char* kOwnerKey = "distca/owner";
inline constexpr const char* kOverKey = "distca/over";
inline std::string size_key(const std::string& prefix) { return prefix + "size"; }
inline std::string claim_key(const std::string& prefix, int rank) {
  return prefix + "claim/" + std::to_string(rank);
}
inline std::string exit_reports_key(const std::string& prefix) { return prefix + "exit_reports"; }
inline std::string deaths_key(const std::string& prefix) { return prefix + "deaths"; }
inline std::string diagnosis_key(const std::string& prefix) { return prefix + "diagnosis"; }
inline std::string heartbeat_key(const std::string& prefix, int rank) {
  return prefix + "heartbeat/" + std::to_string(rank);
}
/// All that `size` ranks may have left in a store.
inline std::vector<std::string> keys_of_run(const std::string& prefix, int size) {
  std::vector<std::string> keys = {kOwnerKey};
  for (const char* name : {"size", "exit_reports", "deaths", "diagnosis", "arrived", "here",
                           "connected", "all connected", "network", "networks", "outside",
                           "diagnosing_rank", "nccl/id", "nccl/left"})
    keys.push_back(prefix + name);
  for (int rank = 0; rank < size; ++rank) {
    keys.push_back(heartbeat_key(prefix, rank));
    keys.push_back(claim_key(prefix, rank));
    // Groups of the Python package leave this one.
    keys.push_back(prefix + "gloo/0/" + std::to_string(rank));
  }
  return keys;
}

}  // namespace distca
