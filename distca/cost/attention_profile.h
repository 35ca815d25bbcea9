#pragma once
// A profile says how long core attention takes on one machine, as times over a grid of task sizes.
// They are measured (`distca profile --attention`) or computed from stated constants. Plans can
// balance these times instead of pairs (task_price.h). docs/profile_format.md describes the JSON.
//
//   const std::shared_ptr<const AttentionProfile> profile = profile_by_name("h200");
//   const TaskPrice price({.num_heads = 4, .num_kv_heads = 1}, profile.get());
//
// A profile is a plain value, which any thread may read.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "distca/cost/attention_shape.h"

namespace distca {

/// Entry [i * kv_tokens.size() + j] of a list of times belongs to one causal task of q_tokens[i]
/// queries, which are the last of kv_tokens[j] keys. Where there are more queries than keys, the
/// entry is 0 and is not used.
struct AttentionProfile {
  std::string machine;   // the CPU or GPU, as "NVIDIA H200 (analytic)"
  std::string path;      // the kernel: "cpu-avx512", "aten-cpu", "analytic", ...
  AttentionShape shape;  // heads, sizes and type that were measured; no window
  /// The grid: ascending numbers above 0. The first and the last of q_tokens are at most those of
  /// kv_tokens.
  std::vector<int64_t> q_tokens;
  std::vector<int64_t> kv_tokens;
  std::vector<int64_t> forward_ns;
  std::vector<int64_t> backward_ns;
  /// Where several kernels were measured: the fastest of each class of launches (kernel_choice.h,
  /// MeasuredKernels), by its name, "aten" or "fa4". The times are those of the fastest. Else
  /// empty.
  std::vector<std::string> forward_kernels = {}, backward_kernels = {};
  // The limit of the rates, in MFLOP/s: what multiply-adds without memory reach, measured in the
  // same run by as many threads. 0 means that none is stated. Prices do not use it.
  int64_t peak_mflops = 0;
  bool operator==(const AttentionProfile&) const = default;
};

/// "MACHINE PATH@HASH", with a hash of shape, grid and times. This name tells two profiles apart in
/// plans and logs.
std::string profile_name(const AttentionProfile& profile);

/// Names the first field that is wrong, in one line: what it is and what would be right. Empty if
/// there is none.
std::string profile_fault(const AttentionProfile& profile);

/// A profile that is stated and not measured: FlashAttention 2 on one H200 with 4 query heads and 1
/// key head of 128 in bf16 (Llama-8B, one of 8 tensor-parallel ranks), from the constants in
/// h200_profile.cc.
/// Counts: a task as its part of one fused call, with whole tiles of 128 queries, also on the
/// diagonal.
/// Ignores: the launch (about 25 us for a call), a device that too few tasks do not fill, reading
/// memory.
AttentionProfile h200_profile();

/// Writes canonical JSON: the same value gives the same bytes.
std::string profile_to_json(const AttentionProfile& profile);
/// Throws Error(kData) that names `name` (the file) and the first field that is missing or wrong.
AttentionProfile profile_from_json(std::string_view json, std::string_view name);
/// The profile that a configuration names: "h200", or the file of a profile. For "pairs", by which
/// load is counted in pairs, there is none (null). Throws Error(kData) as profile_from_json() does;
/// for a file that does not exist, it names the known profiles.
std::shared_ptr<const AttentionProfile> profile_by_name(const std::string& name);

}  // namespace distca
