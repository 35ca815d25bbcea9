#include "distca/program/gradient_exchange.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "distca/base/error.h"

namespace distca {
namespace {

/// Elements that travel together.
struct Cut {
  Range elements;
  int64_t index = 0;  // among those of the same ranks
  int group = 0;
};

/// The ranks of the step that sum a bucket, and the place of this one among them.
struct Group {
  std::vector<int> ranks;
  size_t own = 0;
};

/// [GradientBucket::group]
std::vector<Group> groups_of(const GradientExchangeRequest& request) {
  std::vector<Group> groups{{.ranks = request.ranks}};
  for (const SharedGradients& shared : request.shared) groups.push_back({.ranks = shared.ranks});
  for (Group& group : groups) {
    const auto own = std::ranges::find(group.ranks, request.rank);
    DISTCA_CHECK(own != group.ranks.end(), "rank {} is none of those that hold its weights",
                 request.rank);
    group.own = static_cast<size_t>(own - group.ranks.begin());
  }
  return groups;
}

/// The part of a bucket that the rank in this place adds up. The ranks take turns, so that all of
/// them get as much where buckets have few blocks.
Range slice(const Cut& cut, int64_t block, const Group& group, size_t place) {
  const int64_t blocks = cut.elements.size() / block, ranks = std::ssize(group.ranks);
  const int64_t part = (static_cast<int64_t>(place) + cut.index) % ranks;
  return {cut.elements.begin + blocks * part / ranks * block,
          cut.elements.begin + blocks * (part + 1) / ranks * block};
}

GradientBucket make_bucket(const GradientExchangeRequest& request, const Cut& cut,
                           const Group& group) {
  const Range& elements = cut.elements;
  GradientBucket bucket{
      .elements = elements, .own = slice(cut, request.block, group, group.own), .group = cut.group};
  /// Bytes, as they are gathered.
  const auto gathered = [&](const Range& part) -> Range {
    if (request.distributed_optimizer)
      return {request.weight_offset(part.begin), request.weight_offset(part.end)};
    return {(part.begin - elements.begin) * request.element_bytes,
            (part.end - elements.begin) * request.element_bytes};
  };
  const Range sent = gathered(bucket.own);
  for (size_t place = 0; place < group.ranks.size(); ++place) {
    if (place == group.own) continue;
    const Range theirs = slice(cut, request.block, group, place);
    const int peer = group.ranks[place];
    bucket.reduce_sends.add_at(peer, (theirs.begin - elements.begin) * request.element_bytes,
                               theirs.size() * request.element_bytes);
    bucket.reduce_receives.add(peer, bucket.own.size() * request.element_bytes);
    const Range received = gathered(theirs);
    bucket.gather_sends.add_at(peer, sent.begin, sent.size());
    bucket.gather_receives.add_at(peer, received.begin, received.size());
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

/// The elements of a bucket, so that those of `part` take `most` buckets at most.
int64_t bucket_size(const GradientExchangeRequest& request, int64_t part, int64_t most) {
  const int64_t wanted = request.bucket_elements > 0 ? request.bucket_elements : part;
  const int64_t least = round_up(ceil_div(part, std::max<int64_t>(1, most)), request.block);
  return std::max(least, round_down(wanted, request.block));
}

/// The index of what is shared and has this element, or -1.
int shared_with(const GradientExchangeRequest& request, int64_t element) {
  for (size_t i = 0; i < request.shared.size(); ++i) {
    if (request.shared[i].elements.contains({element, element + 1})) return static_cast<int>(i);
  }
  return -1;
}

/// [bucket] Its elements.
std::vector<Cut> cut_into_buckets(const GradientExchangeRequest& request) {
  DISTCA_CHECK(request.elements > 0 && request.elements % request.block == 0,
               "{} elements are no blocks of {}", request.elements, request.block);
  // All who share something give it as many buckets, whatever else they have.
  const int64_t most_shared =
      std::max<int64_t>(1, request.most_buckets / static_cast<int64_t>(request.shared.size() + 1));
  std::vector<int64_t> sizes(request.shared.size() + 1), bounds{end_of_last(request)};
  int64_t rest = request.elements;
  for (size_t i = 0; i < request.shared.size(); ++i) {
    const Range& elements = request.shared[i].elements;
    DISTCA_CHECK(elements.begin % request.block == 0 && elements.end % request.block == 0,
                 "what is shared, elements {} to {}, is no blocks of {}", elements.begin,
                 elements.end, request.block);
    sizes[i + 1] = bucket_size(request, elements.size(), most_shared);
    rest -= elements.size();
    bounds.insert(bounds.end(), {elements.begin, elements.end});
  }
  // One less: the last phases' elements begin a bucket of their own.
  const int64_t most = request.most_buckets - std::ssize(request.shared) * most_shared - 1;
  sizes[0] = bucket_size(request, rest, most);
  std::vector<Cut> cuts;
  std::vector<int64_t> numbers(sizes.size(), 0);
  for (int64_t end = request.elements; end > 0;) {
    const int group = 1 + shared_with(request, end - 1);
    int64_t begin = std::max<int64_t>(0, end - sizes[group]);
    for (const int64_t bound : bounds) {
      if (bound < end) begin = std::max(begin, bound);
    }
    cuts.push_back({.elements = {begin, end}, .index = numbers[group]++, .group = group});
    end = begin;
  }
  return cuts;
}

}  // namespace

GradientExchange make_gradient_exchange(const GradientExchangeRequest& request) {
  GradientExchange exchange{.phases = request.phases,
                            .distributed_optimizer = request.distributed_optimizer,
                            .overlaps = request.overlaps};
  const std::vector<Group> groups = groups_of(request);
  for (const Group& group : groups) exchange.groups.push_back(group.ranks);
  for (const Cut& cut : cut_into_buckets(request))
    exchange.buckets.push_back(make_bucket(request, cut, groups[cut.group]));
  return exchange;
}

std::vector<Range> own_slices(const GradientExchangeRequest& request) {
  const std::vector<Group> groups = groups_of(request);
  std::vector<Range> slices;
  for (const Cut& cut : cut_into_buckets(request))
    slices.push_back(slice(cut, request.block, groups[cut.group], groups[cut.group].own));
  return slices;
}

}  // namespace distca
