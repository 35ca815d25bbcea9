#pragma once
// One problem for attention kernels: buffers with random values, its tasks, and how many operations
// they need. Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "bench/huge_pages.h"
#include "distca/base/random.h"
#include "distca/cost/pass.h"
#include "distca/kernels/cpu/attention.h"

namespace distca::bench {

constexpr std::string_view pass_name(Pass pass) {
  return pass == Pass::kForward ? "forward" : "backward";
}

/// Heads of the buffers [tokens, heads, head_dim]. A problem may use the first heads only: the
/// memory of a whole layer in the time of a few heads.
struct Heads {
  int64_t heads = 0;     // query heads in the buffer
  int64_t kv_heads = 0;  // key heads in the buffer
  int64_t kv_used = 0;   // key heads computed, with their query heads
  int64_t group() const { return heads / kv_heads; }
  int64_t used() const { return kv_used * group(); }
};

/// Consecutive queries; they see all keys up to their own position.
struct QueryRun {
  int64_t position = 0;
  int64_t tokens = 0;
};

/// A tensor [tokens, heads, dim] without gaps, aligned as PyTorch's are. In the arena's memory.
class Buffer {
 public:
  Buffer(Arena& arena, ScalarType type, int64_t tokens, int64_t heads, int64_t dim);
  /// Uniform with mean 0 and variance 1.
  void fill(Random& random);
  kernels::Rows rows();
  ScalarType type() const { return type_; }
  int64_t tokens() const { return tokens_; }
  int64_t dim() const { return dim_; }

 private:
  ScalarType type_;
  int64_t tokens_, heads_, dim_;
  std::byte* data_;
};

/// Tasks on one document: all runs read the same key buffer.
class Problem {
 public:
  Problem(ScalarType type, const Heads& heads, int64_t head_dim, const std::vector<QueryRun>& runs);
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  /// Over the (query, key) pairs that the mask allows: 4 x head_dim forward, 10 x backward.
  double flops(Pass pass) const;
  /// Computes LSE and delta, which backward is given.
  void prepare(kernels::ThreadPool& pool, kernels::Isa isa);
  /// Gradients are added to what is there.
  void run(Pass pass, kernels::ThreadPool& pool, kernels::Isa isa);

  const Heads& heads() const { return heads_; }
  const kernels::Shape& shape() const { return shape_; }

  Arena arena;
  Buffer q, k, v, o, d_o, lse, delta, dq, dk, dv;

 private:
  void add_tasks(const std::vector<QueryRun>& runs);

  ScalarType type_;
  Heads heads_;
  kernels::Shape shape_;
  double pairs_ = 0;  // (query, key) pairs of one head that the mask allows
  kernels::TaskList list_;
};

}  // namespace distca::bench
