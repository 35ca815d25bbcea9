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
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "distca/program/program.h"
#include "distca/sim/wire.h"

namespace distca {

/// The numbers of the ranks whose programs these are: of all ranks in order, or of the first rank
/// of each server.
std::vector<int> ranks_of(std::span<const Program> programs);

class MessageTimes {
 public:
  /// The programs must outlive it.
  MessageTimes(std::span<const Program> programs, const Wire& wire);

  /// The rank of the step whose program this is.
  int rank_of(size_t program) const { return ranks_[program].rank; }
  /// The operations of a program that send or receive something, in order.
  const std::vector<int32_t>& communications(size_t program) const { return ranks_[program].ops; }
  bool has_messages(size_t program, int32_t op) const {
    return ranks_[program].number_of_op[static_cast<size_t>(op)] >= 0;
  }

  /// A rank's operation hands its messages to the network at `at_ps`. A rank's times never fall.
  void start(size_t program, int32_t op, int64_t at_ps);

  struct Over {
    int64_t at_ps;
    int64_t last_peer_ps;  // when the last peer was at it
  };
  /// When all that a communication receives is there, or all that it sends. Nothing where a peer is
  /// not known to be at it yet; then ask again. Both are a CHECK where peers have other messages.
  std::optional<Over> received(size_t program, int32_t op);
  std::optional<Over> sent(size_t program, int32_t op);

 private:
  enum PortOf : uint8_t { kInside, kBetween };
  using EachPort = std::array<int64_t, 2>;  // [PortOf]
  /// Long enough before the step for any burst.
  static constexpr int64_t kIdle = std::numeric_limits<int64_t>::min() / 4;

  /// A list of messages, which many communications share: what follows from it alone.
  struct Shares {
    struct Message {
      size_t program;  // the peer's, or that of the first rank of its server
      bool is_played;  // false if the peer itself has no program
      PortOf port;
      int64_t bytes;
      int64_t own_ps;  // the time of its bytes
      int64_t end_ps;  // the time of all that its port sends until it has left
    };
    const MessageList* list = nullptr;
    std::vector<Message> messages;  // in the list's order
    EachPort total_ps{};            // the time of all bytes that go through a port
  };
  struct Communication {
    const Op* op;
    size_t program;
    size_t tag;  // its number among the step's tags
    const Shares *sends, *receives;
    int64_t issued_ps = -1;           // -1 until it is started
    std::optional<int64_t> begin_ps;  // from when on its peers find it; with in_order later
    EachPort out_ps{}, in_ps{};       // when its ports are free for it; a burst's time earlier
    std::optional<Over> received, sent;
    size_t waits_in = 0, waits_out = 0;  // the message whose peer was not at it when last asked
    bool is_asked = false;               // while what it follows is looked for
  };
  struct Rank {
    int rank = 0;
    std::vector<int32_t> ops;  // [communication]
    std::vector<Communication> communications;
    std::vector<int32_t> number_of_op;   // [operation] its communication; -1 without messages
    std::vector<int32_t> number_of_tag;  // [tag] its communication; -1 where it has none
    EachPort out_free_ps{kIdle, kIdle}, in_free_ps{kIdle, kIdle};
  };
  /// A message as both sides have it.
  struct Met {
    PortOf port;
    int64_t own_ps, end_ps;  // times of its bytes and of all that the sender's port sends by then
    int64_t ready_ps, in_ps;
    int64_t first_ps;  // when its first byte leaves, a burst's time earlier
    int64_t left_ps;   // when its last byte has left
  };

  const Port& port(PortOf of) const { return of == kInside ? wire_.inside : wire_.between; }
  PortOf port_between(int rank, int peer) const;
  int name_of(size_t program, const Op& op) const;
  Communication& at(size_t program, int32_t op);
  void add_communication(size_t program, size_t op, size_t tag);
  const Shares* shares(size_t program, const Op& op, const MessageList& list);
  Shares::Message message_of(size_t program, const Op& op, const PeerMessage& message) const;

  std::optional<int64_t> begun(Communication& one);
  std::optional<Met> met(Communication& own, size_t message, bool is_sent);
  Communication& of_peer(Communication& own, const Shares::Message& message);
  int64_t end_ps(const Communication& own, size_t message, const Communication& sender) const;
  bool meet_all(Communication& own, bool is_sent);
  std::optional<Over> received(Communication& one);
  std::optional<Over> sent(Communication& one);
  int64_t notice_ps(const Communication& receives, PortOf of) const;
  int64_t drained_ps();

  const std::span<const Program> programs_;
  const Wire wire_;
  const EachPort burst_ps_;
  std::vector<Rank> ranks_;                     // [program]
  std::unordered_map<int, size_t> program_of_;  // [rank]
  std::map<std::pair<size_t, const MessageList*>, Shares> shares_;
  std::vector<Met> met_;  // messages of the communication that meet_all() looked at last
};

}  // namespace distca
