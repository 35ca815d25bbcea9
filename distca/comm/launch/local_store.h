#pragma once
// Hosts the run's key-value store in this process. Used by the launcher and the store process.

#include <cstdint>
#include <memory>
#include <string>

#include "distca/base/file.h"

namespace c10d {
class Store;
}

namespace distca {

enum class Interface { kLoopback, kAll };

/// Where a store on the loopback interface is found: "::1", or "127.0.0.1" on a machine without
/// IPv6. c10d tries IPv6 first and looks up the name of what it connects to; 127.0.0.1, dressed as
/// IPv6, is in no hosts file, and the question goes out to a name server that may take seconds.
std::string loopback_address();

/// A socket that owns its port, so that nobody else can take it before the store listens. Closed
/// when destroyed.
class ListenSocket {
 public:
  /// Port 0: a free one. Throws Error(kConfig) naming the port if it is in use.
  ListenSocket(Interface interface, int port);

  uint16_t port() const { return port_; }
  int release() { return fd_.release(); }

 private:
  FileDescriptor fd_;
  uint16_t port_ = 0;
};

/// Starts threads. Any thread may call.
class LocalStore {
 public:
  explicit LocalStore(ListenSocket& socket);
  /// Whose store it is (run_store.h): ranks of other runs are refused, whoever comes first.
  void belong_to(const std::string& run, const std::string& prefix, int size);
  /// The run is over: who comes now waits for the next run's store.
  void close_to_newcomers();
  /// Ranks that have said how they ended.
  int64_t exit_reports(const std::string& prefix);
  /// Reports to all ranks that one of them ended; `how`: "was killed by signal 9 (SIGKILL)".
  void post_death(const std::string& prefix, int rank, const std::string& how);
  /// Returns what a key (store_keys.h) holds, and "" if it is not there.
  std::string read(const std::string& key);

 private:
  std::shared_ptr<c10d::Store> store_;
};

}  // namespace distca
