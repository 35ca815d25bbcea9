#pragma once
// What the ranks of one machine need of its memory, known before anything is read or planned. A
// lower bound: a run that fits is never refused; one that just fits by it may still end for memory.
// Any thread.

#include <cstdint>
#include <vector>

#include "distca/plan/plan.h"
#include "distca/train/config.h"

namespace distca {

/// Ranks [first, first + count) share this machine.
struct LocalRanks {
  int first = 0;
  int count = 1;
};

/// Bytes, summed over the local ranks; doubles, which hold any product of sizes.
struct MemoryParts {
  double weights = 0;  // fp32, or fp64
  double gradients = 0;
  double state = 0;        // AdamW's two moments
  double activations = 0;  // of the nano-batches under way, and weights cast to the compute type
  double logits = 0;       // of one nano-batch, and what its loss makes of them
  double buffers = 0;      // of exchanges, kept keys included

  double total() const { return weights + gradients + state + activations + logits + buffers; }
};

/// Without buffers: those depend on the plan.
/// Counts: weights, gradients and AdamW's state of every local worker; its share of the tokens of
/// the nano-batches that it holds at a time (two under ping-pong) at llama_memory's price; the
/// casts of the layers' weights that their graphs keep; logits, log-probabilities and their
/// gradient at the loss or, where that is more, gradients inside the last MLP. Ignores: the
/// program, PyTorch's libraries, the data set's index, the allocator.
MemoryParts memory_needed(const Config& config, int num_workers, LocalRanks local);

/// Of the local ranks, for the plans of one batch.
double exchange_buffer_bytes(const Config& config, const std::vector<Plan>& plans,
                             bool redispatched, int num_workers, LocalRanks local);

struct MemoryLimit {
  int64_t bytes = 0;
  bool of_group = false;  // a control group's, which is less than what the machine has
};
/// The machine's memory, or what a control group allows this process of it.
MemoryLimit memory_limit();

/// Throws Error(kConfig), naming the parts, where they exceed the limit.
void check_memory(const MemoryParts& parts, LocalRanks local, const MemoryLimit& limit);

}  // namespace distca
