#pragma once
// A grid of core attention's time on one machine, measured (`distca profile --attention`) or stated
// from constants. JSON: docs/profile_format.md. Plain value, any thread.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "distca/cost/attention_cost.h"

namespace distca {

/// Entry [i * kv_tokens.size() + j]: one causal task of q_tokens[i] queries that are the last of
/// kv_tokens[j] keys; with more queries than keys the entry is 0 and unused.
struct AttentionProfile {
  std::string machine;             // "NVIDIA H200 (analytic)"
  std::string path;                // what was measured: "cpu-avx512", "aten-cpu", "analytic", ...
  AttentionShape shape;            // heads, sizes and type measured; no window
  std::vector<int64_t> q_tokens;   // ascending, > 0; first and last at most those of kv_tokens
  std::vector<int64_t> kv_tokens;  // ascending, > 0
  std::vector<int64_t> forward_ns;
  std::vector<int64_t> backward_ns;
  // Limit of the rates: MFLOP/s of multiply-adds without memory, measured in the same run by as
  // many threads; 0: none stated. Prices do not use it.
  int64_t peak_mflops = 0;
  bool operator==(const AttentionProfile&) const = default;
};

/// "MACHINE PATH@HASH", a hash of shape, grid and times: tells two profiles apart in plans and
/// logs.
std::string profile_name(const AttentionProfile& profile);

/// The first field that is wrong, what it is and what would be right, in one line; empty if none.
std::string profile_fault(const AttentionProfile& profile);

/// Stated, not measured: FlashAttention 2 on one H200 with 4 query heads and 1 key head of 128 in
/// bf16 (Llama-8B, one of 8 tensor-parallel ranks), from the constants in h200_profile.cc.
/// Counts: a task's part of one fused call, tiles of 128 queries filled up, the diagonal's too.
/// Ignores: the launch (about 25 us a call), a device not filled by too few tasks, reading memory.
AttentionProfile h200_profile();

/// Canonical JSON: the same value gives the same bytes.
std::string profile_to_json(const AttentionProfile& profile);
/// Throws Error(kData) naming `name` (the file) and the first field that is missing or wrong.
AttentionProfile profile_from_json(std::string_view json, std::string_view name);
/// "h200", or the file of a profile; none for "pairs", by which load is counted without one. Throws
/// Error(kData) as above, and for a file that is not there naming the known profiles.
std::shared_ptr<const AttentionProfile> profile_by_name(const std::string& name);

}  // namespace distca
