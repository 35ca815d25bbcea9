#pragma once
// When messages of the programs of all ranks arrive (sim/player.h says by which rules). The player
// says when a rank has started a communication; when one is over follows from that alone.
//
// Of a port, the time from which it is free for a communication is known once that is started. It
// is counted as if no peer were late, so it never depends on other ranks. A message of b bytes that
// shares the sender's port until s bytes have left arrives a latency behind the latest of
//   out + time(s),  max(out, ready) + time(b),  and the drain of the receiver's port,
// where `out` is when the sender's port is free, and `ready` when the sender knows that both sides
// are at it.
//
// Lanes. Times never decide what can be asked next, so steps on several machines are played in one
// go, each in its lane: whoever sends what to whom is looked up once for all of them.
//
// Thread rule: one thread.

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "distca/sim/step_links.h"
#include "distca/sim/wire.h"

namespace distca {

/// [lane] Picoseconds.
template <size_t kLanes>
using Lanes = std::array<int64_t, kLanes>;

/// [lane] The later time of each lane.
template <size_t kLanes>
Lanes<kLanes> later(const Lanes<kLanes>& a, const Lanes<kLanes>& b) {
  Lanes<kLanes> latest;
  for (size_t i = 0; i < kLanes; ++i) latest[i] = a[i] < b[i] ? b[i] : a[i];
  return latest;
}

/// One port on each lane's machine.
template <size_t kLanes>
class LanePort {
 public:
  LanePort(std::span<const Wire> wires, Port Wire::*port) {
    for (size_t i = 0; i < kLanes; ++i) {
      const Port& own = wires[i].*port;
      time_[i] = PortTime(own);
      latency_ps_[i] = own.latency_ps;
      burst_ps_[i] = own.time_ps(own.burst_bytes);
      is_as_before_[i] = i > 0 && own.bytes_per_s == (wires[i - 1].*port).bytes_per_s;
    }
  }
  /// Port::time_ps() of each lane.
  Lanes<kLanes> time_ps(int64_t bytes) const {
    Lanes<kLanes> time;
    time[0] = time_[0](bytes);
    for (size_t i = 1; i < kLanes; ++i) time[i] = is_as_before_[i] ? time[i - 1] : time_[i](bytes);
    return time;
  }
  const Lanes<kLanes>& latency_ps() const { return latency_ps_; }
  const Lanes<kLanes>& burst_ps() const { return burst_ps_; }

 private:
  std::array<PortTime, kLanes> time_;
  std::array<bool, kLanes> is_as_before_{};  // the rate of the lane before
  Lanes<kLanes> latency_ps_{}, burst_ps_{};
};

template <size_t kLanes>
class MessageTimes {
 public:
  using Ps = Lanes<kLanes>;

  /// Borrows the links. `wires` [lane] are alike in Wire::in_order (CHECK).
  MessageTimes(const StepLinks& links, std::span<const Wire> wires);

  /// A rank hands the messages of a communication to the network at `at_ps`. A rank's times never
  /// fall.
  void start(int32_t communication, const Ps& at_ps);

  struct Over {
    Ps at_ps;
    int64_t last_peer_ps;  // when the last peer was at it, in lane 0
  };
  /// When all that a communication receives is there, or all that it sends. Null where a peer is
  /// not known to be at it yet; then ask again.
  const Over* received(int32_t communication);
  const Over* sent(int32_t communication);

 private:
  using Message = StepLinks::Message;
  static constexpr int64_t kUnknown = -1;  // in lane 0; no lane is known then
  /// Long enough before the step for any burst.
  static constexpr int64_t kIdle = std::numeric_limits<int64_t>::min() / 4;

  struct State {
    /// Until it has begun, `received` is when it was issued.
    Over received, sent;
    uint32_t waits_in = 0, waits_out = 0;  // the first message whose peer was not at it when asked
    bool is_issued = false, is_received = false, is_sent = false;
    bool is_asked = false;  // while what it follows is looked for
  };
  using EachPortPs = std::array<Ps, 2>;  // [PortOf]
  /// When ports are free for a communication, a burst's time earlier.
  struct Free {
    EachPortPs out_ps, in_ps;
  };
  /// A message as both sides have it.
  struct Met {
    Ps own_ps;  // the time of its bytes
    Ps ready_ps, in_ps;
    Ps first_ps;  // when its first byte leaves, a burst's time earlier
    Ps left_ps;   // when its last byte has left
  };
  /// A message at its receiver's port.
  struct Arrival {
    int64_t first_ps, own_ps;
  };

  State& state(int32_t communication) { return states_[static_cast<size_t>(communication)]; }
  bool is_begun(int32_t communication) const {
    return begin_ps_[static_cast<size_t>(communication)][0] != kUnknown;
  }

  bool begins(int32_t communication);
  bool all_begun(int32_t communication, bool is_sent);
  Met met(const Message& message, int32_t sender, int32_t receiver) const;
  void drain(const EachPortPs& free_ps, Over& over);

  const StepLinks& links_;
  const bool in_order_;
  const std::array<LanePort<kLanes>, 2> ports_;  // [PortOf]
  /// [communication] From when on its peers find it; with in_order later than it is started.
  std::vector<Ps> begin_ps_;
  std::vector<State> states_;    // [communication]
  std::vector<Free> free_;       // [communication] empty with in_order
  std::vector<Free> next_free_;  // [program] its ports behind all that was started
  /// [PortOf][lane] Of the communication looked at last.
  std::array<std::array<std::vector<Arrival>, kLanes>, 2> arrivals_;
};

extern template class MessageTimes<1>;
extern template class MessageTimes<3>;
extern template class MessageTimes<6>;

}  // namespace distca
