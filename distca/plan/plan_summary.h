#pragma once
// A plan in a few figures, for people, metrics and benchmarks. The summary is a plain value; any
// thread may make and read one.

#include <cstdint>

#include "distca/plan/plan.h"

namespace distca {

/// Bytes are those of forward of one layer, in the plan's shape, without LSE.
struct PlanSummary {
  double max_over_mean_before = 1;  // by pairs, of plain packing (packed_load)
  double max_over_mean = 1;         // by pairs
  double max_over_mean_time = 1;    // by predicted time; 1 without a profile
  double max_over_share = 1;        // by what was balanced: time with a profile, else pairs
  bool tolerance_met = true;        // max_over_share is at most 1 + tolerance
  int64_t max_time_ns = 0;          // time of the slowest server, forward and backward
  int64_t qkv_bytes = 0;            // Q, K, V that all ranks send
  int64_t o_bytes = 0;              // O that all ranks send
  int64_t max_send_bytes = 0;       // Q, K, V that the busiest rank sends
  int64_t max_receive_bytes = 0;    // Q, K, V that the busiest rank receives
  int64_t max_memory_bytes = 0;     // memory of the fullest rank, all layers
  int64_t tokens_max = 0;           // tokens of the worker with most
  int64_t tokens_min = 0;           // tokens of the worker with fewest
};

PlanSummary summarize(const Plan& plan);

}  // namespace distca
