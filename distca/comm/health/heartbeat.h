#pragma once
// Heartbeats: a thread of each rank, with a connection of its own, writes to the store what the
// rank is at and whom it awaits; who waits in vain reads them all and publishes one diagnosis for
// all (DESIGN rule 5). No call but the constructor touches the store, so a store that hangs cannot
// block training.
//
// Keys under Rendezvous::prefix:
//   heartbeat/RANK  what the rank is at and whom it awaits (JSON)
//   arrived         number of ranks that have sent one; the last sets `here`
//   connected       number of ranks that are connected to all; the last sets `all connected`
//   networks        there if ranks run on several machines; `outside` is then the address of
//                   one that does not reach the store through its loopback interface
//   deaths          lines "RANK how", appended by whoever saw a process end: the launcher
//                   (launch.h) or the store process (store_process.h)
//   diagnosing_rank the one that reads all heartbeats; the others wait for its diagnosis
//   diagnosis       the sentence; the first one published holds
//
// What P ranks ask of the store does not grow faster than P: each asks for a handful of keys a
// heartbeat, less often than that while it waits for the others to come, and one reads them all.
//
// Thread rule: any thread.

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "distca/comm/communicator.h"
#include "distca/comm/health/diagnosis.h"
#include "distca/comm/launch/rendezvous.h"

namespace c10d {
class Store;
}

namespace distca {

/// Seconds between two heartbeats: a tenth of the timeout, at most 1.
double heartbeat_s(const CommOptions& options);

class Heartbeat {
 public:
  /// Connects to the store, or uses `made`, which was made elsewhere, and takes this rank's place:
  /// throws as RunStore. `on_alarm` is called by the heartbeat thread once when a rank's death or a
  /// diagnosis becomes known, or the store is lost. `is_over`: as make_c10d_group takes it.
  Heartbeat(const Rendezvous& rendezvous, const CommOptions& options,
            std::function<void()> on_alarm, c10d::Store* made = nullptr,
            std::function<bool()> is_over = nullptr);
  /// Reports that this rank ended: well, or with an error if an exception is under way.
  ~Heartbeat();

  /// Returns when every rank has sent a heartbeat; Error(kComm) naming the absent after
  /// startup_timeout_s, counted from the constructor, or those that have fallen silent meanwhile.
  void wait_for_all();
  /// The address under which the other ranks reach this one, once all are here. Throws
  /// Error(kConfig) naming GLOO_SOCKET_IFNAME if none is known.
  std::string own_address() const;
  /// Steady seconds at which startup_timeout_s is over.
  double startup_deadline() const;
  /// Until end_startup(), a rank also watches the heartbeat of the next one: true if that has
  /// stopped. It then has no launcher that would have reported it.
  bool neighbour_lost() const;
  /// This rank is connected to all others. Returns when that holds of every rank: until then, none
  /// may end its group, which would close connections that others are still making. Throws as
  /// wait_for_all().
  void wait_for_all_connected();
  void end_startup();
  void set_step(int64_t step);
  /// This rank begins its next exchange.
  Activity begin(std::string_view operation);
  /// This rank does not go on without these, or one of them, if nobody can say which. An empty list
  /// means that it goes on.
  void await(std::span<const int> ranks);
  /// True once a death or a diagnosis is known or the store is lost: no use in waiting for anybody.
  bool alarmed() const;
  /// The diagnosis on this wait, or the one that was there before. Takes at most three heartbeats,
  /// or three times that if the rank that reads the heartbeats is lost, too; if the store is lost,
  /// or does not answer within the grace period after, says what this rank knows.
  std::string diagnose(const FailedWait& wait);
  /// Keys of the store that this rank has asked for or set so far.
  int64_t keys_handled() const;

 private:
  struct State;
  struct Meeting;
  void wait_for(const Meeting& meeting, FailedWait wait);

  std::shared_ptr<State> state_;  // shared with the heartbeat thread, which may outlive us
  const int exceptions_ = std::uncaught_exceptions();
};

}  // namespace distca
