// How the sum of gradients is spread over backward (overlap.h says by which rule).

#include <algorithm>
#include <utility>

#include "distca/base/error.h"
#include "distca/base/integers.h"
#include "distca/program/program_builder.h"

namespace distca {
namespace {

/// Buckets whose parts are under way at a time behind backward: enough to keep the wire busy.
constexpr size_t kMostBehindBackward = 4;
/// Buckets that may follow one message under backward even if an even share of all would be fewer.
constexpr int64_t kFewATurn = 4;

bool overlap(const Range& elements, const GradientBucket& bucket) {
  return !intersect(elements, bucket.elements).empty();
}

}  // namespace

void ProgramBuilder::count_phases() {
  if (!trains() || request_.gradients == nullptr) return;
  program_.gradients = request_.gradients;
  for (const PhaseGradients& phase : request_.gradients->phases)
    phase_elements_.emplace(std::pair(phase.phase, phase.layer), phase.elements);
  const std::vector<GradientBucket>& buckets = request_.gradients->buckets;
  // All ranks that share a bucket give it the same tags, however many buckets each of them has that
  // it shares with others: each group has tags of its own.
  std::vector<int> of_groups(request_.gradients->groups.size(), 0);
  for (const GradientBucket& bucket : buckets) {
    const auto phases = std::ranges::count_if(
        request_.gradients->phases,
        [&](const PhaseGradients& phase) { return overlap(phase.elements, bucket); });
    DISTCA_CHECK(phases > 0, "no phase adds to elements {} to {} of the gradients",
                 bucket.elements.begin, bucket.elements.end);
    buckets_.push_back(
        {.phases_left = static_cast<int>(phases) * part_.num_nano_batches,
         .number = bucket.group * static_cast<int>(kMostBuckets) + of_groups[bucket.group]++});
  }
}

void ProgramBuilder::phase_done(OpKind kind, int layer) {
  if (buckets_.empty()) return;
  const auto [begin, end] = phase_elements_.equal_range({kind, layer});
  for (auto phase = begin; phase != end; ++phase) {
    for (size_t i = 0; i < buckets_.size(); ++i) {
      if (!overlap(phase->second, request_.gradients->buckets[i]) || --buckets_[i].phases_left > 0)
        continue;
      buckets_[i].ready = static_cast<int32_t>(program_.ops.size()) - 1;
      if (!request_.gradients->buckets[i].is_shared())
        queue_.push_back({.bucket = static_cast<int32_t>(i), .is_gather = false});
    }
  }
}

/// A message of core attention has just been issued: now is the turn of gradients.
void ProgramBuilder::message_issued() {
  if (buckets_.empty() || !request_.gradients->overlaps || waiting_ == Waiting::kForThePrevious)
    return;
  ++messages_;
  const int a_layer = 2 * slots_;  // messages: a dispatch and a combine of each nano-batch
  while (!in_flight_.empty() && buckets_[in_flight_.front()].issued_at + slots_ <= messages_)
    add_first();
  // The messages of backward that are left, with this one.
  const int left = messages_of_backward_ - messages_ + 1;
  const auto queued = static_cast<int64_t>(queue_.size());
  const int64_t soon = ceil_div(queued, std::max(1, std::min(a_layer, left))),
                in_time = ceil_div(queued, std::max(1, left)),
                even = ceil_div(static_cast<int64_t>(buckets_.size()),
                                std::max(1, messages_of_backward_));
  // Buckets that are complete at once, such as those of a large head, leave evenly: parts take less
  // memory so, and the next message waits for less.
  const int64_t most = std::max({in_time, even, kFewATurn});
  for (int64_t turn = std::min(soon, most); turn > 0; --turn) issue_first();
}

Op ProgramBuilder::make_bucket_op(OpKind kind, int32_t bucket) const {
  Op op = make_op(kind, Pass::kBackward, -1, -1);
  op.bucket = bucket;
  // A bucket has two communications: kGradReduce, and one that gathers.
  if (communicates(kind)) {
    op.tag = last_p2p_tag() + 1 + 2 * static_cast<uint32_t>(buckets_[bucket].number) +
             (kind == OpKind::kGradReduce ? 0 : 1);
  }
  return op;
}

void ProgramBuilder::issue_first() {
  const Queued queued = queue_.front();
  queue_.pop_front();
  Bucket& bucket = buckets_[queued.bucket];
  const GradientBucket& messages = request_.gradients->buckets[queued.bucket];
  const bool alone = messages.reduce_sends.empty() && messages.reduce_receives.empty();
  if (queued.is_gather) {
    if (alone) return;
    Op op = make_bucket_op(OpKind::kGradGather, queued.bucket);
    wait_for(op, bucket.add);
    op.wait_sends = {bucket.reduce};  // sums arrive where what was sent lay
    bucket.gather = append(std::move(op));
    return;
  }
  bucket.issued_at = messages_;
  in_flight_.push_back(queued.bucket);
  if (alone) return;
  Op op = make_bucket_op(OpKind::kGradReduce, queued.bucket);
  wait_for(op, bucket.ready);
  if (!messages.reduce_receives.empty()) {
    op.in = bucket.parts =
        take_free(free_parts_, BufferRole::kGradParts, messages.reduce_receives.buffer_bytes);
  }
  bucket.reduce = append(std::move(op));
}

/// Adds the bucket that has been under way for longest.
void ProgramBuilder::add_first() {
  const int32_t index = in_flight_.front();
  in_flight_.pop_front();
  Bucket& bucket = buckets_[index];
  Op op = make_bucket_op(OpKind::kGradAdd, index);
  wait_for(op, bucket.ready);
  wait_for(op, bucket.reduce);
  if (bucket.parts >= 0) {
    op.reads = {bucket.parts};
    free_parts_.push_back(bucket.parts);
  }
  bucket.add = append(std::move(op));
  if (!request_.gradients->distributed_optimizer)
    queue_.push_back({.bucket = index, .is_gather = true});
}

/// Behind backward: everything that is left, in the same order.
void ProgramBuilder::send_queued() {
  while (!queue_.empty() || !in_flight_.empty()) {
    while (!queue_.empty() && (queue_.front().is_gather || in_flight_.size() < kMostBehindBackward))
      issue_first();
    if (!in_flight_.empty()) add_first();
  }
}

void ProgramBuilder::finish_sums() {
  if (buckets_.empty()) return;
  send_queued();
  // By themselves, so that all who share something have these operations in the same order. The
  // last stage has long had its parts of what is tied, but the first one completes its own only
  // now.
  for (size_t group = 1; group < request_.gradients->groups.size(); ++group) {
    for (size_t i = 0; i < buckets_.size(); ++i) {
      if (request_.gradients->buckets[i].group == static_cast<int>(group))
        queue_.push_back({.bucket = static_cast<int32_t>(i), .is_gather = false});
    }
  }
  send_queued();
}

Program ProgramBuilder::take() {
  if (trains() && request_.holds_weights) update();
  return std::move(program_);
}

void ProgramBuilder::update() {
  for (const Bucket& bucket : buckets_) DISTCA_CHECK_EQ(bucket.phases_left, 0);
  finish_sums();
  Op norm = make_op(OpKind::kGradNorm, Pass::kBackward, -1, -1);
  for (const Nano& nano : nanos_) {
    wait_for(norm, nano.last);
    wait_for(norm, nano.last_weight_gradient);
  }
  for (const Bucket& bucket : buckets_) wait_for(norm, bucket.add);
  const int32_t normed = append(std::move(norm));
  for (size_t i = 0; i < std::max<size_t>(buckets_.size(), 1); ++i) {
    const int32_t index = buckets_.empty() ? -1 : static_cast<int32_t>(i);
    Op op = make_bucket_op(OpKind::kOptimizer, index);
    wait_for(op, normed);
    if (index >= 0 && buckets_[i].gather >= 0) {
      wait_for(op, buckets_[i].gather);
      op.wait_sends = {buckets_[i].gather};  // clipping changes what is sent
    }
    const int32_t updated = append(std::move(op));
    // Its sums are gathered already, or there is nobody to send to.
    if (index < 0 || !request_.gradients->distributed_optimizer || buckets_[i].reduce < 0) continue;
    Op gather = make_bucket_op(OpKind::kWeightGather, index);
    wait_for(gather, updated);
    append(std::move(gather));
  }
}

}  // namespace distca
