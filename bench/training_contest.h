#pragma once
// Ours and its rivals in turns on the same batches, on all ranks: what bench/training measures.
// Rank 0 writes the lines. Thread rule: one thread a rank; all ranks call it alike.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/training_ways.h"
#include "distca/comm/communicator.h"

namespace distca::bench {

/// First compares the DDP rival, if it is among the rivals, with ours: its first step and ours on
/// the same documents; one that computes something else is a CHECK. Then measures the peak of all
/// ranks and their speeds, and for each source every arm's best way, by a few rounds of their own,
/// and `rounds` rounds of all.
void run_contest(const ContestOptions& options, std::span<const BatchSource> sources,
                 Communicator& comm);

}  // namespace distca::bench
