#pragma once
// A measured grid of core attention's time on one machine. Plain value, any thread.

#include <cstdint>
#include <string>
#include <vector>

#include "distca/cost/attention_cost.h"

namespace distca {

/// Entry [i * kv_tokens.size() + j]: one causal task of q_tokens[i] queries that are the last of
/// kv_tokens[j] keys; with more queries than keys the entry is 0 and unused.
struct AttentionProfile {
  std::string machine;             // "NVIDIA H200 (analytic)"
  std::string path;                // what was measured: "aten-cpu", "analytic", ...
  AttentionShape shape;            // heads, sizes and type measured
  std::vector<int64_t> q_tokens;   // ascending, > 0
  std::vector<int64_t> kv_tokens;  // ascending, > 0
  std::vector<int64_t> forward_ns;
  std::vector<int64_t> backward_ns;
  bool operator==(const AttentionProfile&) const = default;
};

/// "MACHINE PATH@HASH": tells two profiles apart in plans and logs.
std::string profile_name(const AttentionProfile& profile);

}  // namespace distca
