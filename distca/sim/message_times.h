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
// Thread rule: one thread.

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "distca/sim/step_links.h"
#include "distca/sim/wire.h"

namespace distca {

class MessageTimes {
 public:
  /// Borrows the links.
  MessageTimes(const StepLinks& links, const Wire& wire);

  /// A rank hands the messages of a communication to the network at `at_ps`. A rank's times never
  /// fall.
  void start(int32_t communication, int64_t at_ps);

  struct Over {
    int64_t at_ps;
    int64_t last_peer_ps;  // when the last peer was at it
  };
  /// When all that a communication receives is there, or all that it sends. Nothing where a peer is
  /// not known to be at it yet; then ask again.
  std::optional<Over> received(int32_t communication);
  std::optional<Over> sent(int32_t communication);

 private:
  using Message = StepLinks::Message;
  static constexpr int64_t kUnknown = -1;
  /// Long enough before the step for any burst.
  static constexpr int64_t kIdle = std::numeric_limits<int64_t>::min() / 4;

  struct State {
    int64_t issued_ps = kUnknown;  // until it is started
    Over received{kUnknown, kUnknown}, sent{kUnknown, kUnknown};
    uint32_t waits_in = 0, waits_out = 0;  // the first message whose peer was not at it when asked
    bool is_asked = false;                 // while what it follows is looked for
  };
  /// When ports are free for a communication, a burst's time earlier.
  struct Free {
    EachPort out_ps{}, in_ps{};
  };
  /// A message as both sides have it.
  struct Met {
    int64_t own_ps;  // the time of its bytes
    int64_t ready_ps, in_ps;
    int64_t first_ps;  // when its first byte leaves, a burst's time earlier
    int64_t left_ps;   // when its last byte has left
  };
  /// A message at its receiver's port.
  struct Arrival {
    int64_t first_ps, own_ps;
  };

  const Port& port(PortOf of) const { return of == PortOf::kInside ? wire_.inside : wire_.between; }
  State& state(int32_t communication) { return states_[static_cast<size_t>(communication)]; }

  int64_t begun(int32_t communication);
  bool all_begun(int32_t communication, bool is_sent);
  Met met(const Message& message, int32_t sender, int32_t receiver) const;

  const StepLinks& links_;
  const Wire wire_;
  const std::array<PortTime, 2> times_;  // [PortOf]
  const EachPort burst_ps_;
  /// [communication] From when on its peers find it; with in_order later than it is started.
  std::vector<int64_t> begin_ps_;
  std::vector<State> states_;                     // [communication]
  std::vector<Free> free_;                        // [communication] empty with in_order
  std::vector<Free> next_free_;                   // [program] its ports behind all that was started
  std::array<std::vector<Arrival>, 2> arrivals_;  // [PortOf] of the communication looked at last
};

}  // namespace distca
