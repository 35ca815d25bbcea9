#pragma once
// The rows that bench/attention measures, one after another. Plain values, any thread.

#include <cstdint>
#include <string>
#include <vector>

#include "bench/attention_problem.h"

namespace distca::bench {

enum class RowKind {
  kLength,   // one causal sequence, per instruction set, against PyTorch
  kShards,   // shards of several sizes against one long sequence
  kThreads,  // one causal sequence on several threads against one
};

struct RowSpec {
  RowKind kind = RowKind::kLength;
  ScalarType type = ScalarType::kFloat32;
  int64_t head_dim = 0;
  Heads heads;
  int64_t length = 0;
  std::vector<kernels::Isa> isas;

  /// "lengths fp32 d64 8:8 512": what --only selects by.
  std::string name() const;
};

/// Tokens of the long sequence that shards are held against, and about those of their contexts.
constexpr int64_t kContext = 8192;

/// Rows for the instruction sets that this machine has.
std::vector<RowSpec> all_rows();
/// Returns the rows whose names hold every word of `words`, separated by spaces. Throws
/// Error(kUsage) if there is none.
std::vector<RowSpec> selected_rows(const std::vector<RowSpec>& rows, const std::string& words);

/// The shards that have a bar, in queries.
constexpr int64_t kJudgedShard = 128;
/// Sizes of a row's shards, in queries.
inline constexpr int64_t kShardSizes[] = {16, kJudgedShard};
/// Shards of `queries` queries that begin at multiples of 128, with contexts around kContext, and
/// together about as many (query, key) pairs as one sequence of kContext tokens.
std::vector<QueryRun> shards_of(int64_t queries);

}  // namespace distca::bench
