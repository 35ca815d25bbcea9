#pragma once
// A plan in a few figures, for people, metrics and benchmarks. Plain value, any thread.

#include <cstdint>

#include "distca/plan/plan.h"

namespace distca {

/// Bytes: one layer, forward, of the shape in the plan; LSE left out.
struct PlanSummary {
  double max_over_mean_before = 1;  // by pairs, of plain packing (packed_load)
  double max_over_mean = 1;         // by pairs
  double max_over_mean_time = 1;    // by predicted time; 1 without a profile
  double max_over_share = 1;        // of what was balanced: time with a profile, else pairs
  bool tolerance_met = true;        // max_over_share is at most 1 + tolerance
  int64_t max_time_ns = 0;          // of any one server, forward and backward
  int64_t qkv_bytes = 0;            // over all servers
  int64_t o_bytes = 0;
  int64_t max_send_bytes = 0;  // Q, K, V of any one rank
  int64_t max_receive_bytes = 0;
  int64_t max_memory_bytes = 0;  // of any one rank, all layers
  int64_t tokens_max = 0;        // of any one worker
  int64_t tokens_min = 0;
};

PlanSummary summarize(const Plan& plan);

}  // namespace distca
