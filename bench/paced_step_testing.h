#pragma once
// Steps of pipelines whose operations take stated prices, for the simulator. Those of
// bench/results/ pipeline_paced_* and pipeline_wire_* were measured so: an operation of the compute
// stream slept its price. Plain values; any thread may call the functions.
//
//   const PacedSetting setting{.stages = 4, .micro_batches = 8, .attention_share = 0.4};
//   const PacedStep step(setting, PipelineArm::kWholeEven);
//   const double seconds = step.seconds(rank, op);  // of an operation of step.program(rank)

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/pipeline_setup.h"
#include "distca/program/program.h"

namespace distca::bench {

struct PacedSetting {
  int stages = 2;
  int replicas = 1;
  int micro_batches = 4;  // pairs of nano-batches
  /// Core attention's share of the time of all ranks' linear work and core attention.
  double attention_share = 0.4;
  int layers = 8;           // layers of a stage
  int64_t tokens = 16'384;  // tokens of a nano-batch on a replica
  double linear_s = 0.014;  // linear work of a nano-batch in a layer, forward
  int64_t head_dim = 1;     // size of the one head, which decides how large messages are
  /// The bandwidth by which fill ticks are weighed (PipelineRequest). 0 means that they are not.
  int64_t bytes_per_us = 0;
  FillTicks fill_ticks = FillTicks::kExact;

  int ranks() const { return stages * replicas; }
  std::string name() const;  // "P = 4, M = 8, attention .40"
};

/// [PipelineArm]
inline constexpr std::array<const char*, 9> kPipelineArms{"1F1B, pairs",
                                                          "1F1B, single nano-batches",
                                                          "aligned, attention even",
                                                          "aligned, whole even",
                                                          "aligned, 1 outstanding",
                                                          "aligned, 2 outstanding",
                                                          "mixed",
                                                          "mixed, 2 outstanding",
                                                          "1F1B, zero bubble"};
const char* arm_name(PipelineArm arm);

BatchLengths paced_lengths(const PacedSetting& setting);

/// The prices of operations, in seconds.
struct PacedPrices {
  double token_s = 0;  // linear work of a token in a layer, forward
  double pair_s = 0;   // core attention of a (query, key) pair in a layer, forward
};
/// Prices with which core attention has the setting's share of all work.
PacedPrices paced_prices(const PacedSetting& setting, const BatchLengths& lengths);

/// A step of all ranks in one way.
class PacedStep {
 public:
  PacedStep(const PacedSetting& setting, PipelineArm arm);

  const PipelineParts& parts() const { return parts_; }
  Program program(int rank) const;
  std::vector<Program> programs() const;
  /// The price of an operation of this rank. It is 0 for a communication and for the model's ends.
  double seconds(int rank, const Op& op) const;
  /// The least time of a rank that never waits: all work over all ranks.
  double busy_seconds() const;

 private:
  PacedPrices prices_;
  int layers_;
  PipelineParts parts_;
};

}  // namespace distca::bench
