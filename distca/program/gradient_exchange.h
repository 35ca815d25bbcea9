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
// In a pipeline, those ranks are the replicas of a stage. Some weights are shared by more ranks
// than those that hold all the others: a tied embedding by the first and the last stage, and what
// tensor parallelism does not divide by all ranks of a stage. Such weights have buckets of their
// own, which all their holders sum together in rank order, and cut alike, wherever they lie among
// each one's gradients. So each element is added up, and counted for the norm, by one rank. With
// ZeRO-1, each holder owns a part of them, and all state of that part.
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
  bool is_tied = false;  // the first and the last stage both hold these weights
  /// How many neighbours of a server hold these weights, and have gradients by their own rows or
  /// heads alone: above 1 for what tensor parallelism does not divide, or not so finely.
  int holders = 1;
};

struct GradientBucket {
  Range elements;  // part of the flat gradients
  Range own;       // the slice of it that this rank adds up; empty where blocks are few
  /// Index of the ranks that sum it together, in GradientExchange::groups.
  int group = 0;
  // kGradReduce. Sends lie where the bucket lies, offsets count bytes from its begin; what is
  // received lies in a buffer, the slice `own` of each peer one after another.
  MessageList reduce_sends, reduce_receives;
  // kGradGather or kWeightGather. Offsets count bytes from the bucket's begin among the gradients,
  // or from that of all weights, as this rank has them.
  MessageList gather_sends, gather_receives;

  /// Returns true if more ranks hold these weights than those of this rank's other weights. All of
  /// them have what they share in the same order, and exchange it behind backward, when it is
  /// complete everywhere.
  bool is_shared() const { return group > 0; }
};

struct GradientExchange {
  std::vector<PhaseGradients> phases;
  /// In the order in which backward completes them: the last elements come first. What is complete
  /// only when backward ends has buckets of its own.
  std::vector<GradientBucket> buckets;
  /// Ranks of the step, in ascending order, this one included: first those that hold the same
  /// weights as this one, then those that share some of them.
  std::vector<std::vector<int>> groups;
  /// True if a rank updates its slices only, and gathers weights in place of gradients.
  bool distributed_optimizer = false;
  /// True if buckets travel under backward, where the overlap mode hides anything. Otherwise they
  /// travel behind it.
  bool overlaps = true;
};

/// So that the plan of a step stays short for every model and size of buckets.
inline constexpr int64_t kMostBuckets = 4096;

/// Elements that more ranks hold than the others do.
struct SharedGradients {
  Range elements;          // in whole blocks
  std::vector<int> ranks;  // ranks of the step, this one included, in ascending order
};

struct GradientExchangeRequest {
  std::vector<PhaseGradients> phases;   // for every bucket at least one
  int64_t elements = 0;                 // all flat gradients; a multiple of `block`
  int64_t block = 1;                    // buckets and slices begin at multiples of it
  int64_t element_bytes = 4;            // bytes of one gradient
  int64_t bucket_elements = 0;          // wanted size. 0 makes as few buckets as there can be.
  int64_t most_buckets = kMostBuckets;  // 2 or more; buckets are larger where they would be more
  int rank = 0;                         // this one, as a rank of the step
  std::vector<int> ranks = {0};         // ranks that hold all of these weights, in ascending order
  /// In the same order on all ranks that share something. Each has a bucket at least, even if
  /// most_buckets is 2.
  std::vector<SharedGradients> shared = {};
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
