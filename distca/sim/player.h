#pragma once
// Plays the programs of all ranks by prices, without computing or sending anything: when each
// operation begins and ends, what each rank waits for, and how long the step takes.
//
//   const TimedStep step = timed_step(programs, prices, wire);
//   fmt::print("{} ps, rank 0 waited {} ps\n", step.length_ps, step.ranks[0].late_ps);
//
// A rank's thread plays as runtime/executor does: operations of the compute stream in the order of
// the list, a communication where it stands in it, and waits only for what the next operation
// needs.
//
// Messages. A message moves once its sender and its receiver have both started the communication
// (rendezvous, as Gloo and NCCL do it). A receiver tells the sender that it has, and this
// word travels behind what the receiver has sent before, as in a connection of Gloo. All messages
// that a rank sends in one communication share its port evenly; the next communication follows as
// if no receiver had been late, so one peer that is late does not hold up the others. Messages that
// a rank receives in one communication arrive in the order in which they began to move, at the rate
// of its port. A communication is over for a rank once all that it receives is there. With
// Wire::in_order, a rank's communications have the ports to themselves, one after another, each
// once its peers are at it, too.
//
// Every time is a sum of prices along waits, or the latest of such. So with fixed programs a
// cheaper operation or a faster wire never makes a step longer, and the order in which ranks are
// played changes nothing. Any thread may call the functions.

#include <cstdint>
#include <span>
#include <vector>

#include "distca/program/program.h"
#include "distca/sim/prices.h"
#include "distca/sim/step_links.h"
#include "distca/sim/wire.h"

namespace distca {

/// When an operation was played, in picoseconds since the step began.
struct TimedOp {
  int64_t begin_ps = 0;  // for a communication, when its messages were handed over
  int64_t end_ps = 0;    // for a communication, when all that it receives was there
  int64_t sent_ps = 0;   // for a communication, when all that it sends was there
  bool operator==(const TimedOp&) const = default;
};

/// The time of a rank's thread, in picoseconds. The parts add up to `end_ps`.
struct RankTime {
  int64_t end_ps = 0;       // when its last operation was over
  int64_t computed_ps = 0;  // operations of the compute stream
  int64_t copied_ps = 0;    // packing, and putting in place
  int64_t issued_ps = 0;    // handing messages to the network
  int64_t core_ps = 0;      // the part of the core that the network's threads took
  int64_t late_ps = 0;      // waits until the last peer had begun to send, or to receive
  int64_t exposed_ps = 0;   // waits behind that, for messages under way
  bool operator==(const RankTime&) const = default;
};

struct TimedStep {
  std::vector<std::vector<TimedOp>> ops;  // [program][operation]
  std::vector<RankTime> ranks;            // [program]
  int64_t length_ps = 0;                  // the end of the last rank
};

/// The order in which ranks get their turns to be played, which changes nothing.
enum class Turns { kFirstToLast, kLastToFirst };

/// The programs of all ranks, in the order of the ranks, or of the first rank of each server: its
/// partners then do the same at the same time. Programs that wait in a circle, or whose messages
/// are not those that their peers expect, are a CHECK.
TimedStep timed_step(std::span<const Program> programs, const OpPrices& prices, const Wire& wire,
                     Turns turns = Turns::kFirstToLast);

/// A machine on which a step is played, with its prices and its wire.
struct PlayedOn {
  const OpPrices* prices;
  Wire wire;
};
/// The most machines that are played together.
inline constexpr size_t kMostMachinesTogether = 6;

/// A step on several machines.
struct TimedTogether {
  TimedStep first;                  // on the first one; empty unless it is asked for
  std::vector<int64_t> lengths_ps;  // [machine] TimedStep::length_ps
};
/// The step on 1 to kMostMachinesTogether machines that are alike in Wire::in_order (CHECK), as if
/// each were played by itself. The links are found once, and several threads may play them at the
/// same time; the wires must have as many ranks a node as they. Who waits for whom is looked up
/// once for all of them, so six take little more than two. Only `with_first` keeps the operations'
/// times of the first one.
TimedTogether timed_together(const StepLinks& links, std::span<const PlayedOn> machines,
                             bool with_first);

}  // namespace distca
