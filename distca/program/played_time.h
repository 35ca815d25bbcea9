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

/// [rank] `seconds(rank, op)` is the price of an operation of the compute stream. Each message
/// takes `message_s` from the start of its communication, at the same time as all others; sends
/// leave at once. Programs that wait in a circle are a CHECK.
std::vector<PlayedTime> played_times(const std::vector<Program>& programs,
                                     const std::function<double(int, const Op&)>& seconds,
                                     double message_s);

}  // namespace distca
