#pragma once
// How long the programs of all ranks would take if operations took exactly their prices and
// messages a given time: what an executor that costs nothing would need, with all waits of the
// programs' order. Plain values, any thread.

#include <functional>
#include <vector>

#include "distca/program/program.h"

namespace distca::bench {

struct ModelledRank {
  double end_s = 0;     // end of the last operation
  double worked_s = 0;  // the prices of all operations
};

/// [rank] `seconds(rank, op)` is the price of an operation of the compute stream. Each message
/// takes `message_s` from the start of its communication, at the same time as all others; sends
/// leave at once.
/// Programs that wait in a circle are a CHECK.
std::vector<ModelledRank> modelled(const std::vector<Program>& programs,
                                   const std::function<double(int, const Op&)>& seconds,
                                   double message_s);

}  // namespace distca::bench
