#pragma once
// plan_batch() makes a plan for the core attention of a packed batch. A plan says which tokens each
// rank holds and which (query, key) pairs each rank computes. This is a complete program,
// examples/plan.cc:
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
// A plan is a pure function of the request. So every rank can make the plan for itself, and all
// plans have the same hash. docs/planner.md explains how plans are made. All functions may be
// called from any thread.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "distca/base/integers.h"
#include "distca/base/scalar_type.h"

namespace distca {
struct Plan;
}

namespace distca::api {

/// The core attention of one layer as one rank sees it. Under tensor parallelism, give the heads of
/// one rank.
struct Shape {
  /// The number of heads of Q. It is a multiple of num_kv_heads.
  int64_t num_heads = 32;
  /// The number of heads of K and V: num_heads for MHA, fewer for GQA, 1 for MQA.
  int64_t num_kv_heads = 8;
  /// The size of a head of Q and K. It is a multiple of 8.
  int64_t head_dim = 128;
  /// The size of a head of V and O, a multiple of 8. 0 means head_dim.
  int64_t head_dim_v = 0;
  /// The type of Q, K, V, O and their gradients.
  ScalarType dtype = ScalarType::kBFloat16;
  bool operator==(const Shape&) const = default;
};

/// The input of plan_batch().
struct BatchRequest {
  /// [documents + 1] The places at which the documents begin in the packed batch of all ranks, and
  /// the place at which the last one ends. As in flash-attn, the first is 0 and none is below the
  /// one before it. A token attends to itself and to earlier tokens of its own document.
  std::vector<int64_t> cu_seqlens;

  /// The number of ranks that compute. They are the ranks of the communicator.
  int num_ranks = 1;

  Shape shape;

  /// The number of keys before its own position that a query sees, in addition to the one at its
  /// position. -1 means all of its document. flash-attn calls it window_size = (window_left, 0). In
  /// Hugging Face's terms, it is sliding_window - 1. A model whose layers have several windows
  /// makes one plan for each window, all with the same `tokens`.
  ///
  /// Default: -1
  int64_t window_left = -1;

  /// [num_ranks] The tokens that each rank holds: ranges of the packed batch, in the order in which
  /// they lie in the rank's tensors. Ranks may hold unequal numbers of tokens, or none. Every token
  /// is held exactly once. A document may be cut at any token. Tasks are cut there and at multiples
  /// of 128 tokens from the document's first.
  ///
  /// If it is empty, the planner chooses, and gives each rank equally many tokens. Its choice needs
  /// about 30 % fewer bytes in the table of docs/planner.md. So leave the choice to the planner if
  /// the data loader can follow a plan.
  ///
  /// Default: empty
  std::vector<std::vector<Range>> tokens;

  /// If the planner chooses the tokens, only ranks 0 .. num_holders - 1 hold any, and the other
  /// ranks compute for them. 0 means that all ranks hold tokens.
  ///
  /// Default: 0
  int num_holders = 0;

  /// [num_ranks] Each rank's share of the computation, in any unit. A rank with 0 computes nothing,
  /// not even for its own tokens. Set it if ranks differ in speed or in their other work. Empty
  /// means equal shares.
  ///
  /// Default: empty
  std::vector<int64_t> capacity;

  /// The multiply-adds of a layer that are not core attention (projections and MLP), for each token
  /// on the rank that holds it. Where it is given, ranks with fewer tokens compute more attention,
  /// so that all ranks are done with both together. Give it if a rank's linear work of one
  /// nano-batch runs at the same time as the attention of another one. If all ranks wait for each
  /// other between the two, leave it 0. It takes the place of `capacity`; give one of the two.
  ///
  /// Default: 0, which means that attention alone is evened out
  int64_t linear_work = 0;

  /// The name of the scheduler. "balanced" gives equal computation for the fewest bytes. "greedy"
  /// is that of the paper. "local" computes every query where it is held, so no queries travel.
  /// `distca plan --compare` shows all of them.
  std::string scheduler = "balanced";

  /// By how much the busiest rank may exceed its share: 0.05 means 5 %. A higher tolerance needs
  /// fewer bytes. Not set: the scheduler's own, which is 0.02 for "balanced".
  ///
  /// Default: not set
  std::optional<double> tolerance;

  /// If true, a task may have only some of its queries' keys, and partial results are merged by
  /// log-sum-exp. That needs fewer bytes, but the bits of O then depend on the plan. Only
  /// "balanced" can do it.
  bool split_kv = false;

  bool operator==(const BatchRequest&) const = default;
};

/// A plan that the validator has checked. It is a value; copies share its memory.
class BatchPlan {
 public:
  /// Takes a plan of the planner's own type (plan/plan.h) that was made elsewhere. Throws
  /// Error(kPlan) with the first fault that the validator finds.
  explicit BatchPlan(Plan plan);
  /// Reads what json() returned. Throws Error(kPlan), which names the first field that is missing
  /// or wrong.
  static BatchPlan from_json(std::string_view json);

  int num_ranks() const;
  /// [num_ranks] The tokens that each rank holds, as in BatchRequest::tokens.
  const std::vector<std::vector<Range>>& tokens() const;
  /// The number of tokens that the rank holds.
  int64_t num_tokens(int rank) const;
  /// The (query, key) pairs of the busiest rank, divided by its share of all pairs by capacity. 1
  /// is perfect.
  double max_over_mean() const;
  /// Flops of a layer, forward and backward: of core attention, and of `linear_work`, which is that
  /// of BatchRequest, for each token on the rank that holds it.
  struct Work {
    double at_home;  // the busiest rank's, if each computed what it holds and nothing else
    double planned;  // the busiest rank's
    double mean;     // over all ranks
  };
  Work work(int64_t linear_work) const;
  /// The bytes that all ranks send in the forward of a layer.
  int64_t sent_bytes() const;
  /// 16 hex digits that are equal where plans are equal. Ranks compare them before they follow a
  /// plan.
  const std::string& hash() const;
  /// The plan as canonical JSON (docs/plan_format.md), to be handed to another process.
  std::string json() const;

  /// The plan in the planner's own type.
  const Plan& plan() const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

/// Makes the plan of a request and checks it. Throws Error(kPlan) in one line that says what is
/// wrong with the request and what would be right.
BatchPlan plan_batch(const BatchRequest& request);

}  // namespace distca::api
