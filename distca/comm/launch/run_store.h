#pragma once
// One rank's connection to the store through which the ranks of a run meet.
//
// A store belongs to one run: who comes with another rank number taken, another size or another
// launcher's job is refused before it has written anything, so that a second run on the same
// address ends and the first does not notice. Ranks that a launcher without job numbers started
// (RANK and WORLD_SIZE alone) have nothing in common but the address: of two such runs that start
// at the same moment, ranks may take each other's places.
//
// A store that somebody else made belongs to one communicator, which has a connection of its own.
// It may end while we ask, before or after the program has told PyTorch so: c10d's page of stack
// about that is not shown (HushedCerr), for it says nothing that our errors do not.
//
// Keys (store_keys.h):
//   distca/owner         Rendezvous::run of the run whose store it is
//   distca/over          the run has ended, the store is about to
//   PREFIX size          number of ranks
//   PREFIX claim/RANK    a random number of the process that is this rank
//   PREFIX exit_reports     ranks that have said how they ended
//
// Thread rule: one thread at a time.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "distca/comm/communicator.h"
#include "distca/comm/launch/rendezvous.h"

namespace c10d {
class Store;
}

namespace distca {

/// "the store at HOST:PORT", or "the store" for one made elsewhere.
std::string store_name(const Rendezvous& rendezvous);

/// Keeps a store that c10d's pointers own.
std::shared_ptr<c10d::Store> keep_store(c10d::Store& store);

/// A connection to the store that the rendezvous names, whose calls wait so many seconds. Its keys
/// begin with those of the run and `part`, if there is one. Throws c10d's exceptions.
std::shared_ptr<c10d::Store> connect_to_store(const Rendezvous& rendezvous, double timeout_s,
                                              const std::string& part = "");

class RunStore {
 public:
  /// Connects and takes the rank's place. A store whose run is over is given the grace period to
  /// end, and its successor waited for. Throws Error(kComm) if there is no store within the
  /// start-up timeout, Error(kConfig) if it is another run's or check_address() refuses. `made`: a
  /// store made elsewhere, to be used instead; `rendezvous` then has rank, size and prefix only.
  RunStore(const Rendezvous& rendezvous, const CommOptions& options, c10d::Store* made = nullptr);

  // Each throws c10d's exceptions when the store is lost or does not answer within timeout_s.
  bool has(const std::string& key);
  /// Waits for a key that is not there.
  std::string get(const std::string& key);
  /// None if the key is not there.
  std::optional<std::string> find(const std::string& key);
  /// None for keys that are not there. `all_there`: asks once for all.
  std::vector<std::optional<std::string>> get_each(const std::vector<std::string>& keys,
                                                   bool all_there);
  void set(const std::string& key, const std::string& value);
  /// Sets a key that is not there; what holds then.
  std::string set_first(const std::string& key, const std::string& value);
  int64_t add(const std::string& key, int64_t amount);
  /// Deletes the keys of a store that somebody else made, if they are there.
  void forget(const std::vector<std::string>& keys);

  /// Keys asked for or set so far: what the store, one thread for all ranks, has to do for us. Any
  /// thread.
  int64_t keys_handled() const { return keys_handled_; }

 private:
  bool connect(const Rendezvous& rendezvous, const CommOptions& options, double timeout_s);
  void claim(const Rendezvous& rendezvous);
  struct Question;
  /// The store, for a question about so many keys.
  Question ask(size_t keys = 1);

  std::shared_ptr<c10d::Store> store_;
  const bool is_ours_;
  std::atomic<int64_t> keys_handled_ = 0;
};

}  // namespace distca
