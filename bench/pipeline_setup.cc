#include "bench/pipeline_setup.h"

#include <algorithm>
#include <cmath>

#include "distca/base/error.h"
#include "distca/base/normal.h"
#include "distca/cost/attention_shape.h"

namespace distca::bench {
namespace {

/// How far lengths of documents are spread, which are log-normal.
constexpr double kSpread = 1.2;

bool is_at_home(PipelineArm arm) {
  return arm == PipelineArm::kHomePairs || arm == PipelineArm::kHomeSingles ||
         arm == PipelineArm::kZeroBubble;
}

bool is_mixed(PipelineArm arm) { return arm == PipelineArm::kMixed || arm == PipelineArm::kMixed2; }

int outstanding_weight_gradients(PipelineArm arm, int stages) {
  if (arm == PipelineArm::kZeroBubble) return stages;
  if (arm == PipelineArm::kWaits1) return 1;
  return arm == PipelineArm::kWaits2 || arm == PipelineArm::kMixed2 ? 2 : 0;
}

}  // namespace

BatchLengths uneven_lengths(int nano_batches, int64_t tokens, double median_tokens, uint64_t seed) {
  constexpr int64_t kLeast = 64;
  BatchLengths lengths(static_cast<size_t>(nano_batches));
  for (size_t nano = 0; nano < lengths.size(); ++nano) {
    std::vector<float> normal(static_cast<size_t>(ceil_div(tokens, kLeast)));
    draw_normal_chunk(seed, nano, 1, normal);
    int64_t left = tokens;
    for (size_t i = 0; left > 0; ++i) {
      const int64_t drawn = std::llround(median_tokens * std::exp(kSpread * normal[i]));
      lengths[nano].push_back(std::min(std::max(drawn, kLeast), left));
      left -= lengths[nano].back();
    }
  }
  return lengths;
}

BatchLengths paired(const BatchLengths& lengths) {
  BatchLengths pairs;
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (i % 2 == 0) pairs.emplace_back();
    pairs.back().insert(pairs.back().end(), lengths[i].begin(), lengths[i].end());
  }
  return pairs;
}

PipelineStepRequest step_request(PipelineArm arm, const ArmRequest& of) {
  PipelineStepRequest step{.request = {},
                           .layers = {},
                           .schedule = is_at_home(arm) ? PipelineSchedule::kAtHome
                                       : is_mixed(arm) ? PipelineSchedule::kMixed
                                                       : PipelineSchedule::kAligned};
  for (int stage = 0; stage < of.grid.stages; ++stage)
    step.layers.push_back({stage * of.layers, (stage + 1) * of.layers});
  PipelineRequest& request = step.request;
  request.grid = of.grid;
  request.slots = is_at_home(arm) ? 1 : 2;
  request.shape = of.shape;
  request.options.scheduler = is_at_home(arm) ? "local" : "balanced";
  if (!is_at_home(arm)) request.options.tolerance_ppm = of.tolerance_ppm;
  request.balance_target =
      arm == PipelineArm::kAttentionEven ? BalanceTarget::kAttention : BalanceTarget::kWhole;
  request.speeds.assign(static_cast<size_t>(of.grid.num_ranks()), of.speed);
  request.ends = of.ends;
  request.bytes_per_us = of.bytes_per_us;
  request.fill_ticks = of.fill_ticks;
  request.layer_steps = of.layers;
  request.outstanding_weight_gradients = outstanding_weight_gradients(arm, of.grid.stages);
  for (const std::vector<int64_t>& nano : of.lengths) {
    request.nano_batches.push_back(NanoBatch::from_lengths(nano));
    request.homes.push_back(
        make_layout({request.nano_batches.back(), Cluster::in_place(of.grid.replicas), of.shape,
                     request.options}));
  }
  return step;
}

TickSums tick_sums(const PipelineParts& parts) {
  DISTCA_CHECK(parts.ticks_plan() != nullptr, "attention at home has no ticks");
  TickSums sums;
  for (const TickFigures& tick : tick_figures(parts.request(), *parts.ticks_plan())) {
    sums.planned_s += 1e-12 * static_cast<double>(tick.planned_ps);
    sums.least_s += 1e-12 * static_cast<double>(tick.ideal_ps);
    sums.over_least = std::max(sums.over_least, tick.over_ideal());
  }
  return sums;
}

}  // namespace distca::bench
