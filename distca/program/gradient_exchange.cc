#include "distca/program/gradient_exchange.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "distca/base/error.h"

namespace distca {
namespace {

/// The part of a bucket that `rank` adds up. The ranks take turns, so that all of them get as much
/// where buckets have few blocks.
Range slice(const GradientExchangeRequest& request, const Range& bucket, int64_t index, int rank) {
  const int64_t blocks = bucket.size() / request.block;
  const int64_t part = (rank + index) % request.num_ranks;
  return {bucket.begin + blocks * part / request.num_ranks * request.block,
          bucket.begin + blocks * (part + 1) / request.num_ranks * request.block};
}

void add_at(MessageList& list, int peer, int64_t offset, int64_t bytes) {
  if (bytes == 0) return;
  list.messages.push_back({.peer = peer, .offset = offset, .bytes = bytes});
  list.bytes += bytes;
  list.buffer_bytes = std::max(list.buffer_bytes, offset + bytes);
}

GradientBucket make_bucket(const GradientExchangeRequest& request, const Range& elements,
                           int64_t index) {
  GradientBucket bucket{.elements = elements, .own = slice(request, elements, index, request.rank)};
  /// Bytes, as they are gathered.
  const auto gathered = [&](const Range& part) -> Range {
    if (request.distributed_optimizer)
      return {request.weight_offset(part.begin), request.weight_offset(part.end)};
    return {(part.begin - elements.begin) * request.element_bytes,
            (part.end - elements.begin) * request.element_bytes};
  };
  const Range sent = gathered(bucket.own);
  for (int peer = 0; peer < request.num_ranks; ++peer) {
    if (peer == request.rank) continue;
    const Range theirs = slice(request, elements, index, peer);
    const int peer_rank = request.first_rank + peer;
    add_at(bucket.reduce_sends, peer_rank, (theirs.begin - elements.begin) * request.element_bytes,
           theirs.size() * request.element_bytes);
    bucket.reduce_receives.add(peer_rank, bucket.own.size() * request.element_bytes);
    const Range received = gathered(theirs);
    add_at(bucket.gather_sends, peer_rank, sent.begin, sent.size());
    add_at(bucket.gather_receives, peer_rank, received.begin, received.size());
  }
  return bucket;
}

/// The end of what is complete only when backward ends: the embedding and the first layer's
/// pre_attention. No bucket goes on behind it, so as little as can be travels behind backward.
int64_t end_of_last(const GradientExchangeRequest& request) {
  int first_layer = std::numeric_limits<int>::max();
  for (const PhaseGradients& phase : request.phases) {
    if (phase.layer >= 0) first_layer = std::min(first_layer, phase.layer);
  }
  int64_t end = 0;
  for (const PhaseGradients& phase : request.phases) {
    if (phase.phase == OpKind::kEmbed ||
        (phase.phase == OpKind::kPreAttention && phase.layer == first_layer))
      end = std::max(end, phase.elements.end);
  }
  return round_up(end, request.block);
}

/// [bucket] The elements of each.
std::vector<Range> cut_into_buckets(const GradientExchangeRequest& request) {
  DISTCA_CHECK(request.elements > 0 && request.elements % request.block == 0,
               "{} elements are no blocks of {}", request.elements, request.block);
  const int64_t wanted = request.bucket_elements > 0 ? request.bucket_elements : request.elements;
  // One less: the last phases' elements begin a bucket of their own.
  const int64_t least = round_up(
      ceil_div(request.elements, std::max<int64_t>(1, request.most_buckets - 1)), request.block);
  const int64_t each = std::max(least, round_down(wanted, request.block));
  const int64_t end_of_last_phases = end_of_last(request);
  std::vector<Range> buckets;
  for (int64_t end = request.elements; end > 0;) {
    const int64_t least_begin = end > end_of_last_phases ? end_of_last_phases : 0;
    const int64_t begin = std::max(least_begin, end - each);
    buckets.push_back({begin, end});
    end = begin;
  }
  return buckets;
}

}  // namespace

GradientExchange make_gradient_exchange(const GradientExchangeRequest& request) {
  GradientExchange exchange{.phases = request.phases,
                            .distributed_optimizer = request.distributed_optimizer,
                            .overlaps = request.overlaps};
  for (const Range& elements : cut_into_buckets(request)) {
    exchange.buckets.push_back(
        make_bucket(request, elements, static_cast<int64_t>(exchange.buckets.size())));
  }
  return exchange;
}

std::vector<Range> own_slices(const GradientExchangeRequest& request) {
  std::vector<Range> slices;
  for (const Range& elements : cut_into_buckets(request)) {
    slices.push_back(slice(request, elements, static_cast<int64_t>(slices.size()), request.rank));
  }
  return slices;
}

}  // namespace distca
