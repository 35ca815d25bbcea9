#pragma once
// How long the programs of all ranks would take if operations took exactly their prices and
// messages a given time: what an executor that costs nothing would need, with all waits of the
// programs' order. Plain values, any thread.
//
//   for (const PlayedTime& rank : played_times(programs, price, /*message_s=*/0))
//     step_s = std::max(step_s, rank.end_s);

#include <functional>
#include <vector>

#include "distca/program/program.h"

namespace distca {

struct PlayedTime {
  double end_s = 0;     // end of the last operation, in seconds since the step began
  double worked_s = 0;  // the prices of all operations, in seconds
};

/// The price of an operation of a rank, in seconds.
using OpPrice = std::function<double(int rank, const Op& op)>;

/// When communications that were started are under way.
enum class Channels {
  kOfEach,  // all at the same time; each is over for a rank once what it receives is there
  /// A rank's one after another in the order in which they were started, each once its peers are at
  /// it, too: NCCL with one communicator.
  kOne,
};

/// [rank] `seconds` prices operations of the compute stream, and `message_s` communications: what a
/// rank sends takes so long. Sends leave at once. Programs that wait in a circle are a CHECK.
std::vector<PlayedTime> played_times(const std::vector<Program>& programs, const OpPrice& seconds,
                                     const OpPrice& message_s,
                                     Channels channels = Channels::kOfEach);
/// Likewise, where all messages take as long.
std::vector<PlayedTime> played_times(const std::vector<Program>& programs, const OpPrice& seconds,
                                     double message_s);

}  // namespace distca
