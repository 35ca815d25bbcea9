#pragma once
// A gradient exchange lists what one rank sends, receives and adds of the gradients, and of the
// weights that they change. The gradients of all weights lie end to end in one flat buffer, which
// is cut into buckets; a bucket travels as soon as backward has completed it (parallel.bucket_mb).
// Each bucket is cut into an even slice for each rank that holds weights. Every rank sends the
// others their slices of what it has, adds up its own slice in rank order, and then:
//  - sends the sum to all others (plain data parallelism), or
//  - updates the slice alone and sends the new weights (ZeRO-1,
//    parallel.use_distributed_optimizer).
//
// In a pipeline, those ranks are the replicas of a stage. What the first and the last stage both
// hold, a tied embedding, has buckets of its own, which the replicas of both stages sum together:
// the first stage's parts in rank order, then the last one's. Both stages cut it alike, wherever it
// lies among their gradients. With ZeRO-1, each rank of both stages so owns a part of it, and all
// state of that part; what a checkpoint holds of it comes from both stages.
//
//   request.gradients = std::make_shared<const GradientExchange>(make_gradient_exchange(...));
//   const Program program = build_program(request);
//
// A gradient exchange is a plain value, which is not changed once it is made. Any thread may read
// it.

#include <cstdint>
#include <functional>
#include <vector>

#include "distca/base/integers.h"
#include "distca/plan/attention_exchange.h"
#include "distca/program/program.h"

namespace distca {

/// The elements of the flat gradients to which the backward of a phase adds.
struct PhaseGradients {
  OpKind phase = OpKind::kEmbed;
  int layer = -1;  // index in the model; -1 is the embedding or the loss
  Range elements;
};

struct GradientBucket {
  Range elements;  // part of the flat gradients
  Range own;       // the slice of it that this rank adds up; empty where blocks are few
  /// True if another stage of the pipeline holds these weights, too. Both stages have their tied
  /// buckets in the same order, and exchange them behind backward, when both are complete.
  bool is_tied = false;
  // kGradReduce. Sends lie where the bucket lies, offsets count bytes from its begin; what is
  // received lies in a buffer, the slice `own` of each peer one after another.
  MessageList reduce_sends, reduce_receives;
  // kGradGather or kWeightGather. Offsets count bytes from the bucket's begin among the gradients,
  // or from that of all weights, as this rank has them.
  MessageList gather_sends, gather_receives;
};

struct GradientExchange {
  std::vector<PhaseGradients> phases;
  /// In the order in which backward completes them: the last elements come first. What is complete
  /// only when backward ends has buckets of its own.
  std::vector<GradientBucket> buckets;
  int first_rank = 0;  // the first rank of the step that holds these weights
  /// True if a rank updates its slices only, and gathers weights in place of gradients.
  bool distributed_optimizer = false;
  /// True if buckets travel under backward, where the overlap mode hides anything. Otherwise they
  /// travel behind it.
  bool overlaps = true;
};

/// So that the plan of a step stays short for every model and size of buckets.
inline constexpr int64_t kMostBuckets = 4096;

struct GradientExchangeRequest {
  std::vector<PhaseGradients> phases;   // for every bucket at least one
  int64_t elements = 0;                 // all flat gradients; a multiple of `block`
  int64_t block = 1;                    // buckets and slices begin at multiples of it
  int64_t element_bytes = 4;            // bytes of one gradient
  int64_t bucket_elements = 0;          // wanted size. 0 makes as few buckets as there can be.
  int64_t most_buckets = kMostBuckets;  // 2 or more; buckets are larger where they would be more
  int rank = 0, num_ranks = 1;          // place among the holders of these weights; their number
  int first_rank = 0;                   // the first of these holders, as a rank of the step
  /// The elements that another stage holds, too, in whole blocks, and the ranks of the step that
  /// hold them, this one included, in ascending order. Both are empty where nothing is tied.
  /// Otherwise there can be 3 buckets or more even if most_buckets is 2.
  Range tied = {};
  std::vector<int> tied_ranks = {};
  bool distributed_optimizer = false;
  bool overlaps = true;
  /// Where the weight of an element begins among all weights as they are gathered, in bytes. Needed
  /// for distributed_optimizer only.
  std::function<int64_t(int64_t element)> weight_offset;
};

/// A pure function. Elements that are not whole blocks are a CHECK. Its lists hold four messages
/// for each bucket and other rank.
GradientExchange make_gradient_exchange(const GradientExchangeRequest& request);
/// [bucket] GradientBucket::own alone, without the lists.
std::vector<Range> own_slices(const GradientExchangeRequest& request);

}  // namespace distca
