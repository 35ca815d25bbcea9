#pragma once
// How the programs of all ranks hang together: which communications an operation waits for, and who
// sends whom how much in each. This follows from the programs and the nodes alone, so it is found
// once and played with any prices and rates (sim/player.h).
//
//   const StepLinks links(programs, wire.ranks_per_node);
//   const PlayedOn machine{.prices = &prices, .wire = wire};
//   const TimedStep step = timed_together(links, {&machine, 1}, /*with_first=*/true).first;
//
// Communications of all programs are numbered together: those of a tag are neighbours. Programs
// whose messages are not those that their peers expect are a CHECK. Any thread may call the
// methods.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "distca/program/program.h"

namespace distca {

/// The numbers of the ranks whose programs these are: of all ranks in order, or of the first rank
/// of each server.
std::vector<int> ranks_of(std::span<const Program> programs);

/// The port of a rank that a message goes through.
enum class PortOf : uint8_t { kInside, kBetween };
using EachPort = std::array<int64_t, 2>;  // [PortOf]

class StepLinks {
 public:
  /// The programs must outlive it. On up to so many threads.
  StepLinks(std::span<const Program> programs, int ranks_per_node, int threads = 1);

  struct Message {
    int32_t program;  // the peer's, or that of the first rank of its server
    PortOf port;
    bool is_played;  // false if the peer itself has no program
    int64_t bytes;
    /// Bytes that its sender's port sends of the communication until it has left.
    int64_t shared_bytes;
  };
  struct Communication {
    int32_t program, op;
    int32_t tag;              // its number among the step's tags
    int32_t before;           // the communication of its program before it; -1 for the first
    int32_t sends, receives;  // in the program's lists
  };

  std::span<const Program> programs() const { return programs_; }
  /// The rank of the step whose program this is.
  int rank_of(size_t program) const { return of_[program].rank; }

  size_t num_communications() const { return communications_.size(); }
  const Communication& communication(int32_t number) const { return communications_[number]; }
  const Op& op_of(int32_t number) const {
    return programs_[communications_[number].program].ops[communications_[number].op];
  }
  /// The communications of a program, in the order of its operations.
  std::span<const int32_t> communications(size_t program) const {
    return of_[program].communications;
  }
  /// The communication that an operation is; -1 if it sends and receives nothing.
  int32_t at(size_t program, size_t op) const { return of_[program].places[op].communication; }
  bool computes(size_t program, size_t op) const { return of_[program].places[op].computes; }
  /// The communications that an operation waits for: for what they receive, and for their sends.
  std::span<const int32_t> waits_for(size_t program, size_t op) const {
    const Place* const place = &of_[program].places[op];
    return waits(program, place->waits_for, place->wait_sends);
  }
  std::span<const int32_t> wait_sends(size_t program, size_t op) const {
    const Place* const place = &of_[program].places[op];
    return waits(program, place->wait_sends, place[1].waits_for);
  }

  /// The messages that a communication sends, or that it receives, and their bytes by ports.
  const MessageList& list(const Communication& one, bool is_sent) const {
    return *found(one, is_sent).of;
  }
  std::span<const Message> messages(const Communication& one, bool is_sent) const {
    const List& list = found(one, is_sent);
    return std::span(side(one.program, is_sent).messages)
        .subspan(list.begin, list.end - list.begin);
  }
  const EachPort& port_bytes(const Communication& one, bool is_sent) const {
    return found(one, is_sent).port_bytes;
  }
  /// The communication of a message's peer; this one for ranks of the same server.
  int32_t peer_of(int32_t number, const Message& message) const {
    const Communication& own = communications_[number];
    return message.program == own.program ? number : number_of(own.tag, message.program);
  }

 private:
  struct List {
    const MessageList* of;
    uint32_t begin, end;    // its messages
    EachPort port_bytes{};  // all messages
  };
  /// Lists that many communications of a program share, and their messages.
  struct Side {
    std::vector<List> lists;
    std::vector<Message> messages;
  };
  /// An operation, and where its waits begin. They end where the next ones begin.
  struct Place {
    int32_t communication = -1;
    uint32_t waits_for = 0, wait_sends = 0;
    bool computes = false;
  };
  struct OfProgram {
    int rank = 0;
    std::vector<Place> places;            // [operation], and one behind the last
    std::vector<int32_t> communications;  // in order
    std::vector<int32_t> waits;
    Side sent, received;
  };

  std::span<const int32_t> waits(size_t program, uint32_t begin, uint32_t end) const {
    return std::span(of_[program].waits).subspan(begin, end - begin);
  }
  const Side& side(size_t program, bool is_sent) const {
    return is_sent ? of_[program].sent : of_[program].received;
  }
  const List& found(const Communication& one, bool is_sent) const {
    return side(one.program, is_sent).lists[is_sent ? one.sends : one.receives];
  }
  int32_t number_of(int32_t tag, int32_t program) const {
    return number_of_[static_cast<size_t>(tag) * programs_.size() + static_cast<size_t>(program)];
  }

  std::vector<uint32_t> find_communications(size_t program);
  void number_communications(std::vector<std::vector<uint32_t>> tags);
  void add_lists(size_t program);
  void add_waits(size_t program);
  int32_t add_list(size_t program, const Op& op, const MessageList& list, Side& side);
  Message message_of(size_t program, const Op& op, const PeerMessage& message) const;
  int name_of(size_t program, const Op& op) const;

  void link(size_t part, size_t parts);
  void check_peers(int32_t number) const;
  void link_received(int32_t number, std::vector<int32_t>& senders);
  int64_t senders_share(int32_t number, const Communication& sender, const Message& message,
                        size_t& likely) const;

  const std::span<const Program> programs_;
  const int ranks_per_node_;
  std::vector<OfProgram> of_;        // [program]
  std::vector<int32_t> program_of_;  // [rank] -1 if it has none
  std::vector<Communication> communications_;
  std::vector<int32_t> number_of_;  // [tag x programs] -1 where a program has none
};

}  // namespace distca
