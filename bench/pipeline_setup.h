#pragma once
// Pipelines to be played in several ways: the nano-batches, and what their plans are asked for.
// Plain values; any thread may call the functions.

#include <cstdint>
#include <optional>
#include <vector>

#include "bench/step_figures.h"
#include "distca/plan/pipeline/pipeline_time.h"
#include "distca/program/pipeline_parts.h"

namespace distca::bench {

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

/// Lengths as far apart as those of long-context corpora, so that nano-batches of equally many
/// tokens have uneven attention: log-normal, cut where a nano-batch is full.
BatchLengths uneven_lengths(int nano_batches, int64_t tokens, double median_tokens, uint64_t seed);

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
  double planned_s = 0, least_s = 0;
  double over_least = 0;  // TickFigures::over_ideal() of the worst tick
};
TickSums tick_sums(const PipelineParts& parts);

}  // namespace distca::bench
