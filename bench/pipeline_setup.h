#pragma once
// Pipelines to be played in several ways, from stated prices of their operations: nano-batches,
// plans and programs of all ranks. bench/pipeline plays them paced, where an operation of the
// compute stream sleeps its price. Plain values; any thread may call the functions.
//
//   const PacedSetting setting{.stages = 4, .micro_batches = 8, .attention_share = 0.4};
//   const PacedStep step(setting, PipelineArm::kWholeEven);
//   const double seconds = step.seconds(rank, op);  // of an operation of step.program(rank)

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/step_figures.h"
#include "distca/plan/pipeline/pipeline_time.h"
#include "distca/program/pipeline_parts.h"
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
  uint64_t seed = 1;

  int ranks() const { return stages * replicas; }
  std::string name() const;  // "P = 4, M = 8, attention .40"
};

/// Ways to play the same documents.
enum class PipelineArm : uint8_t {
  /// 1F1B, attention at home. A micro-batch is one nano-batch that has the documents of a pair.
  kHomePairs,
  kHomeSingles,    // likewise; each nano-batch is a micro-batch, so there are twice as many
  kAttentionEven,  // phase-aligned, attention pooled and even in each tick (the paper)
  kWholeEven,      // phase-aligned, linear work and attention even together
  // Likewise, and the weight gradients of one or two micro-batches may wait for ticks with time.
  kWaits1,
  kWaits2,
  kMixed,       // 1F1B in lockstep, attention pooled, linear work and attention even together
  kMixed2,      // likewise, and those of two micro-batches may wait
  kZeroBubble,  // kHomeSingles with weight gradients in idle ticks, of as many as there are stages
};
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
bool is_at_home(PipelineArm arm);
bool is_mixed(PipelineArm arm);
int outstanding_weight_gradients(PipelineArm arm, int stages);

/// Lengths as far apart as those of long-context corpora, so that nano-batches of equally many
/// tokens have uneven attention: log-normal, cut where a nano-batch is full.
BatchLengths uneven_lengths(int nano_batches, int64_t tokens, double median_tokens, uint64_t seed);
BatchLengths paced_lengths(const PacedSetting& setting);

/// The documents of each pair of nano-batches as one.
BatchLengths paired(const BatchLengths& lengths);

/// The problem that the plans of an arm solve.
struct ArmRequest {
  Grid grid;
  int64_t layers = 1;    // layers of a stage
  BatchLengths lengths;  // documents as the arm plays them
  AttentionShape shape;
  RankSpeed speed;                      // speed of every rank
  std::vector<EmbeddingHeadTime> ends;  // [stage] An empty list means no time.
  int64_t bytes_per_us = 0;             // PipelineRequest::bytes_per_us
  FillTicks fill_ticks = FillTicks::kExact;
  std::optional<int64_t> tolerance_ppm = {};  // for arms whose attention is balanced
};
PipelineStepRequest step_request(PipelineArm arm, const ArmRequest& request);

/// Ticks of an aligned arm together, in seconds.
struct TickSums {
  int ticks = 0;
  double planned_s = 0, least_s = 0;
  double over_least = 0;  // TickFigures::over_ideal() of the worst tick
};
TickSums tick_sums(const PipelineParts& parts);

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
