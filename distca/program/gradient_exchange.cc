#include "distca/program/gradient_exchange.h"

#include <algorithm>
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
  for (int peer = 0; peer < request.num_ranks; ++peer) {
    if (peer == request.rank) continue;
    const Range theirs = slice(request, elements, index, peer);
    add_at(bucket.reduce_sends, peer, (theirs.begin - elements.begin) * request.element_bytes,
           theirs.size() * request.element_bytes);
    bucket.reduce_receives.add(peer, bucket.own.size() * request.element_bytes);
    const Range sent = gathered(bucket.own), received = gathered(theirs);
    add_at(bucket.gather_sends, peer, sent.begin, sent.size());
    add_at(bucket.gather_receives, peer, received.begin, received.size());
  }
  return bucket;
}

}  // namespace

GradientExchange make_gradient_exchange(const GradientExchangeRequest& request) {
  DISTCA_CHECK(request.elements > 0 && request.elements % request.block == 0,
               "{} elements are no blocks of {}", request.elements, request.block);
  GradientExchange exchange{.phases = request.phases,
                            .distributed_optimizer = request.distributed_optimizer,
                            .overlaps = request.overlaps};
  const int64_t wanted = request.bucket_elements > 0 ? request.bucket_elements : request.elements;
  const int64_t least = round_up(ceil_div(request.elements, kMostBuckets), request.block);
  const int64_t each = std::max(least, round_down(wanted, request.block));
  for (int64_t end = request.elements; end > 0; end -= each) {
    exchange.buckets.push_back(make_bucket(request, {std::max<int64_t>(0, end - each), end},
                                           static_cast<int64_t>(exchange.buckets.size())));
  }
  return exchange;
}

}  // namespace distca
