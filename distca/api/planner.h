#pragma once
// Plans of core attention: from the documents of a packed batch to which tokens each rank holds and
// which (query, key) pairs each rank computes. A complete program, examples/plan.cc:
//
//   #include <fmt/format.h>
//
//   #include "distca/api/planner.h"
//
//   int main() {
//     const distca::api::BatchPlan plan = distca::api::plan_batch({
//         .cu_seqlens = {0, 6000, 6500, 7000, 7900, 8192},  // five documents
//         .num_ranks = 4,
//         .shape = {.num_heads = 32, .num_kv_heads = 8, .head_dim = 128},
//     });
//     for (int rank = 0; rank < plan.num_ranks(); ++rank) {
//       for (const distca::Range& tokens : plan.tokens()[rank])
//         fmt::print("rank {} holds tokens {} to {}\n", rank, tokens.begin, tokens.end - 1);
//     }
//     fmt::print("busiest rank / mean: {:.3f}\nplan {}\n", plan.max_over_mean(), plan.hash());
//   }
//
// A plan is a pure function of the request: every rank makes its own, and all have the same hash.
// How plans are made: docs/planner.md. Any thread.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "distca/base/integers.h"
#include "distca/base/scalar_type.h"

namespace distca {
struct Plan;
}

namespace distca::api {

/// Core attention of one layer as one rank sees it: heads already divided by tensor parallelism.
struct Shape {
  int64_t num_heads = 32;    // of Q; a multiple of num_kv_heads
  int64_t num_kv_heads = 8;  // of K and V: num_heads for MHA, fewer for GQA, 1 for MQA
  int64_t head_dim = 128;    // of Q and K; a multiple of 8
  int64_t head_dim_v = 0;    // of V and O; 0: as head_dim
  ScalarType dtype = ScalarType::kBFloat16;  // of Q, K, V, O and their gradients
  bool operator==(const Shape&) const = default;
};

struct BatchRequest {
  /// [documents + 1] Where each document begins in the packed batch of all ranks, and where the
  /// last one ends, as flash-attn's cu_seqlens: 0 first, never descending. A token attends to
  /// itself and to earlier tokens of its own document.
  std::vector<int64_t> cu_seqlens;

  /// Ranks 0 .. num_ranks - 1 compute. They are the ranks of the communicator.
  int num_ranks = 1;

  Shape shape;

  /// A query sees itself and this many keys before it; -1: all of its document. flash-attn's
  /// window_size = (window_left, 0); sliding_window - 1 of Hugging Face. A model whose layers have
  /// several windows makes a plan for each, all with the same `tokens`.
  int64_t window_left = -1;

  /// [num_ranks] Which tokens each rank holds: ranges of the packed batch, in the order in which
  /// they lie in the rank's tensors. It is taken as it is: ranks may hold unequal numbers of
  /// tokens, or none. Every token is held once; a document may be cut at multiples of 128 from its
  /// begin. Empty: the planner chooses, equally many tokens for each rank. Its choice needs fewer
  /// bytes, about 30 % in docs/planner.md's table, so take it where the data loader can follow a
  /// plan.
  std::vector<std::vector<Range>> tokens;

  /// Where the planner chooses: ranks 0 .. num_holders - 1 hold tokens, the others compute for
  /// them. 0: all hold tokens.
  int num_holders = 0;

  /// [num_ranks] Each rank's share of the computation, in any unit. Empty: all alike. 0: computes
  /// nothing, not even for its own tokens. Take it where ranks are unequally fast or have unequal
  /// other work.
  std::vector<int64_t> capacity;

  /// "balanced": equal computation for the fewest bytes. "greedy": the paper's. "local": every
  /// query where it is held, no bytes of queries. `distca plan --compare` shows all of them.
  std::string scheduler = "balanced";

  /// By how much the busiest rank may exceed its share, 0.05 for 5 %. More needs fewer bytes.
  /// Below 0: the scheduler's own, 0.02 for "balanced".
  double tolerance = -1;

  /// A task may have a part of its queries' keys; parts are merged by log-sum-exp. Needs fewer
  /// bytes, but the bits of O then depend on the plan. Only for "balanced".
  bool split_kv = false;
};

/// A plan that the validator has checked. A value; copies share it.
class BatchPlan {
 public:
  /// Of the planner's own type (plan/plan.h), for plans made elsewhere. Throws Error(kPlan) with
  /// the first fault that the validator finds.
  explicit BatchPlan(Plan plan);
  /// Of what json() gave. Throws Error(kPlan) naming the first field that is missing or wrong.
  static BatchPlan from_json(std::string_view json);

  int num_ranks() const;
  /// [num_ranks] The tokens that each rank holds, as in BatchRequest::tokens.
  const std::vector<std::vector<Range>>& tokens() const;
  int64_t num_tokens(int rank) const;
  /// The busiest rank's (query, key) pairs, over what its capacity says; 1 is perfect.
  double max_over_mean() const;
  /// 16 hex digits, equal where plans are equal. What ranks compare before they follow a plan.
  const std::string& hash() const;
  /// Canonical JSON (docs/plan_format.md): the way to hand a plan to another process.
  std::string json() const;

  const Plan& plan() const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

/// Throws Error(kPlan) in one line that says what is wrong with the request and what would be
/// right.
BatchPlan plan_batch(const BatchRequest& request);

}  // namespace distca::api
