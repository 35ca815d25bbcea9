#pragma once
// Pipelines of two stages that compute: steps of a small Llama, one core a stage, compared with
// 1F1B and with data parallel training on the same documents. Rank 0 writes the lines. Thread rule:
// one thread a rank, all ranks alike.

#include <string>

#include "distca/comm/communicator.h"
#include "distca/model/llama_config.h"

namespace distca::bench {

struct RealOptions {
  int rounds = 15;
  int shown_rounds = 5;  // rounds of the setting that is not judged
  int batches = 3;       // rounds take them in turn
  std::string only;      // settings whose names hold this
};

/// Measures speeds, plans with them and plays all arms in turns. Lines: of each setting "setting",
/// "speeds", an "arm" for each arm and batch, then one a round.
void measure_real(const RealOptions& options, Communicator& comm);

}  // namespace distca::bench
