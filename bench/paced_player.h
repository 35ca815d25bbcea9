#pragma once
// Plays programs with stated prices: an operation of the compute stream sleeps its price, and looks
// at the clock for the last moment of it; communications send their real messages. Nothing is
// packed. Thread rule: one thread a rank.

#include <functional>

#include "distca/comm/communicator.h"
#include "distca/program/program.h"
#include "distca/runtime/exchange_buffers.h"
#include "distca/trace/recorder.h"

namespace distca::bench {

/// The times of one rank's step, on a clock that all ranks of a machine share.
struct PacedRank {
  double begin_s = 0, end_s = 0;
  double slept_s = 0;      // sum over all operations
  double late_s = 0;       // slept_s less the prices of the operations
  double waited_s = 0;     // for messages
  double processor_s = 0;  // processor time of all threads but for looking at the clock
};

class PacedPlayer {
 public:
  explicit PacedPlayer(Communicator& comm);
  /// `seconds` is the price of an operation. Makes room for the program's buffers, meets the other
  /// ranks, and plays it.
  PacedRank play(const Program& program, const std::function<double(const Op&)>& seconds,
                 TraceRecorder* recorder = nullptr);
  /// Plays likewise, but sends nothing, so waits for nothing: this shows what sleeps and the
  /// executor cost.
  PacedRank sleep(const Program& program, const std::function<double(const Op&)>& seconds);

 private:
  PacedRank run(const Program& program, const std::function<double(const Op&)>& seconds, bool sends,
                TraceRecorder* recorder);

  Communicator& comm_;
  ExchangeBuffers buffers_;
};

}  // namespace distca::bench
