#pragma once
// Names of the keys of a run's store that more than one part reads or writes. run_store.h and
// heartbeat.h say what they hold; `prefix` is Rendezvous::prefix. Pure.

#include <string>

namespace distca {

inline constexpr const char* kOwnerKey = "distca/owner";
inline constexpr const char* kOverKey = "distca/over";
inline std::string size_key(const std::string& prefix) { return prefix + "size"; }
inline std::string farewells_key(const std::string& prefix) { return prefix + "farewells"; }
inline std::string deaths_key(const std::string& prefix) { return prefix + "deaths"; }
inline std::string diagnosis_key(const std::string& prefix) { return prefix + "diagnosis"; }
inline std::string heartbeat_key(const std::string& prefix, int rank) {
  return prefix + "heartbeat/" + std::to_string(rank);
}

}  // namespace distca
