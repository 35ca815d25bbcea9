#pragma once
// Computes how much memory the ranks of one machine need, before anything is read or planned. The
// result is a lower bound: a run that fits is never refused, but a run that barely fits by this
// bound may still run out of memory. What the tensors of a rank really take at most is predicted in
// forecast/memory_peak.h, from the same standing_memory(). Any thread may call these functions.

#include <cstdint>
#include <vector>

#include "distca/base/device_facts.h"
#include "distca/config/config.h"
#include "distca/config/run_grid.h"
#include "distca/forecast/plan_request.h"

namespace distca {

/// The ranks of this machine: first, first + 1, ..., first + count - 1.
struct LocalRanks {
  int first = 0;
  int count = 1;
};

/// Bytes of each use of memory, summed over the local ranks. They are doubles, so that no product
/// of sizes overflows.
struct MemoryParts {
  /// Weights in fp32 (fp64 for an fp64 model). With ZeRO-1, matrices are in the compute type.
  double weights = 0;
  double gradients = 0;
  double state = 0;        // AdamW's two moments and, with ZeRO-1, masters of rounded weights
  double copies = 0;       // copies of the weights in the compute type, where that is another type
  double activations = 0;  // activations of the nano-batches under way
  double logits = 0;       // logits of one chunk of rows a worker, with what its loss makes of them
  double buffers = 0;      // buffers of exchanges, with the keys that are kept until backward
  double checkpoint = 0;   // the copy of weights and state from which checkpoints are written

  double total() const {
    return weights + gradients + state + copies + activations + logits + buffers + checkpoint;
  }
};

/// Bytes of one element of a weight as the optimizer has it, of its gradient and of a moment.
double master_bytes(const LlamaConfig& model);

/// Returns true if two nano-batches are under way at the same time on each stage. Stages that
/// compute their own core attention have nothing to hide under the other one.
bool plays_pairs(const Config& config, const RunGrid& run);
/// The most nano-batches of a step whose activations a stage keeps at the same time
/// (most_in_flight(program) of a full step; docs/program.md, "Pipelines"). Without a pipeline, two
/// or one.
int64_t nano_batches_in_flight(const Config& config, const RunGrid& run, int stage);

/// The memory that is taken throughout every step, whatever the step does: weights, gradients,
/// AdamW's state, copies of the weights and each worker's copy for checkpoints that are written
/// while training goes on, which on CUDA is not on the device and not counted. The other parts are
/// 0. In a pipeline, a worker has those of its stage. With ZeRO-1, matrices are in the compute
/// type, and a worker has its share of its stage's state, to which the master weights then belong.
/// This and the next throw as run_grid() does.
MemoryParts standing_memory(const Config& config, int num_workers, LocalRanks local);

/// The memory of a run, without exchange buffers, which depend on the plan.
/// Counts: what stands in memory; at llama_memory's price, each local worker's share of the tokens
/// of the nano-batches in flight on its stage (under ping-pong, one of the last two has come back
/// through its last layer); on the last stage, logits, log-probabilities and their gradient at the
/// loss; or, if that is larger, what the last layer makes in backward. Ignores: the program,
/// PyTorch's libraries, the data set's index, the allocator. It is never above the peaks that
/// forecast/memory_peak.h predicts for the same ranks (a test compares many configurations).
MemoryParts memory_needed(const Config& config, int num_workers, LocalRanks local);

/// Bytes of the local ranks' exchange buffers for the plans of one batch. A run of no steps has
/// none.
double exchange_buffer_bytes(const Config& config, const BatchPlan& plans, int num_workers,
                             LocalRanks local);

/// How much memory there is.
struct MemoryLimit {
  int64_t bytes = 0;
  bool of_group = false;   // a control group sets the limit, below what the machine has
  bool of_device = false;  // it is a CUDA device's memory
};
/// The machine's memory, or less if a control group allows this process only so much.
MemoryLimit memory_limit();

/// Throws Error(kConfig), with every part named, if the parts exceed the limit together. `local`:
/// whose parts they are.
void check_memory(const MemoryParts& parts, LocalRanks local, const MemoryLimit& limit);

/// Checks the memory of the local ranks' devices likewise. Each rank has a device alone, or all
/// share the first one as threads. `plans` are those of the first batch, or null before it is
/// planned. Does nothing where `devices` is empty.
void check_device_memory(const Config& config, int num_workers, LocalRanks local,
                         const std::vector<DeviceFacts>& devices, const BatchPlan* plans);
/// The device of a local rank: of those that are visible, the one of its number on this machine,
/// or the only one. `devices` is not empty.
const DeviceFacts& device_of(const Config& config, int rank, LocalRanks local,
                             const std::vector<DeviceFacts>& devices);

}  // namespace distca
