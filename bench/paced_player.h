#pragma once
// Plays programs with stated prices: an operation of the compute stream sleeps its price, and looks
// at the clock for the last moment of it; communications send their real messages. Nothing is
// packed. So ranks that share cores show what order, waits and messages cost, and nothing about
// kernels. Thread rule: one thread a rank.

#include <functional>

#include "distca/comm/communicator.h"
#include "distca/program/program.h"
#include "distca/runtime/exchange_buffers.h"

namespace distca::bench {

/// The times of one rank's step, on a clock that all ranks of a machine share.
struct PacedRank {
  double begin_s = 0, end_s = 0;
};

class PacedPlayer {
 public:
  explicit PacedPlayer(Communicator& comm);
  /// `seconds` is the price of an operation. Makes room for the program's buffers, meets the other
  /// ranks, and plays it.
  PacedRank play(const Program& program, const std::function<double(const Op&)>& seconds);

 private:
  Communicator& comm_;
  ExchangeBuffers buffers_;
};

}  // namespace distca::bench
