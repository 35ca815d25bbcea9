#pragma once
// Computes what stands in the memory of ranks and what a run cannot do without, and checks that a
// machine or a device has it. The most that the tensors of a rank take under its plans is predicted
// in forecast/memory_peak.h. Any thread may call these functions.

#include <array>
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

/// Uses of a rank's memory. The first six stand during a step, the others come and go.
enum class MemoryPart : uint8_t {
  kWeights,
  kGradients,
  kState,        // AdamW's two moments; with ZeRO-1 also main params
  kCopies,       // copies of the weights in the compute type
  kCheckpoint,   // the copy from which checkpoints are written
  kBuffers,      // buffers of exchanges and gradient sums, with keys kept until backward
  kActivations,  // tensors that forward keeps for backward, and gradients by activations
  kLogits,       // logits of one chunk of rows, with what the loss makes of them
  kPhase,        // temporaries of the operation under way
};
inline constexpr int kNumMemoryParts = static_cast<int>(MemoryPart::kPhase) + 1;
/// "weights", "gradients", ...
const char* memory_part_name(MemoryPart part);

/// Bytes of each use of memory, of one rank or summed over some. They are doubles, so that no
/// product of sizes overflows.
struct MemoryParts {
  std::array<double, kNumMemoryParts> bytes{};  // [MemoryPart]

  double of(MemoryPart part) const { return bytes[static_cast<size_t>(part)]; }
  double& at(MemoryPart part) { return bytes[static_cast<size_t>(part)]; }
  double total() const;
  /// The first of the parts with most bytes.
  MemoryPart largest() const;
  MemoryParts& operator+=(const MemoryParts& other);
};

/// Bytes of one element of a weight as the optimizer has it, of its gradient and of a moment.
double main_param_bytes(const LlamaConfig& model);

/// The memory that is taken throughout every step, whatever the step does: weights, gradients,
/// AdamW's state, copies of the weights and each worker's copy for checkpoints that are written
/// while training goes on, which on CUDA is not on the device and not counted. The other parts are
/// 0. In a pipeline, a worker has those of its stage. With ZeRO-1, matrices are in the compute
/// type, and a worker has its share of its stage's state, to which the main params then belong.
/// This and the next throw as run_grid() does.
MemoryParts standing_memory(const Config& config, int num_workers, LocalRanks local);

/// The memory that a run cannot do without, whatever is planned: what stands, and each local
/// worker's share of the activations of one nano-batch and virtual stage, at llama_memory's price.
/// It is never above the peaks that forecast/memory_peak.h predicts for the same ranks (a test
/// compares many configurations).
MemoryParts memory_needed(const Config& config, int num_workers, LocalRanks local);

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
                         const std::vector<DeviceFacts>& devices, const BatchPlans* plans);
/// The device of a local rank: of those that are visible, the one of its number on this machine,
/// or the only one. `devices` is not empty.
const DeviceFacts& device_of(const Config& config, int rank, LocalRanks local,
                             const std::vector<DeviceFacts>& devices);

}  // namespace distca
