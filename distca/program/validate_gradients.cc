// Buckets of gradients: each is summed once, in time, and untouched while it travels.

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "distca/program/gradient_exchange.h"
#include "distca/program/validate_order.h"

namespace distca {
namespace {

class Gradients {
 public:
  Gradients(const Program& program, const ProgramOrder& order, std::vector<std::string>& wrong)
      : program_(program), order_(order), wrong_(wrong) {}

  void check() {
    const size_t num_buckets = program_.gradients ? program_.gradients->buckets.size() : 0;
    found_.assign(num_buckets, Found());
    for (int32_t i = 0; i < static_cast<int32_t>(program_.ops.size()); ++i) {
      const Op& op = program_.ops[i];
      if (op.kind == OpKind::kGradNorm) norm_ = i;
      if (op.bucket < 0) continue;
      int32_t& place = found_[op.bucket].of[static_cast<size_t>(op.kind)];
      if (place >= 0) say(i, "stands twice");
      place = i;
    }
    for (size_t bucket = 0; bucket < num_buckets; ++bucket) check_bucket(bucket);
  }

 private:
  /// [kind] Operations of a bucket; -1: there is none.
  struct Found {
    Found() { of.fill(-1); }
    std::array<int32_t, kNumOpKinds> of;
  };

  void say(int32_t op, const std::string& what) {
    wrong_.push_back(fmt::format("{} {}", numbered(program_, op), what));
  }

  /// The bucket's operation of this kind; says so if it is there and should not be, or is not.
  int32_t one(size_t bucket, OpKind kind, bool wanted) {
    const int32_t i = found_[bucket].of[static_cast<size_t>(kind)];
    if ((i >= 0) != wanted) {
      wrong_.push_back(
          fmt::format("bucket {} has {}{}", bucket, wanted ? "no " : "a ", op_name(kind)));
    }
    return wanted ? i : -1;
  }

  /// What `before` computes, or receives, is there when `i` begins.
  void behind(int32_t i, int32_t before) {
    if (i < 0 || before < 0) return;
    if (before > i) return say(i, fmt::format("comes before {}", numbered(program_, before)));
    const bool over = program_.ops[before].stream == Stream::kCompute ? order_.ended(before, i)
                                                                      : order_.landed(before, i);
    if (!over) say(i, fmt::format("does not wait for {}", numbered(program_, before)));
  }
  void behind_sends(int32_t i, int32_t before) {
    if (i >= 0 && before >= 0 && before < i && !order_.left(before, i))
      say(i, fmt::format("writes what {} may still send", numbered(program_, before)));
  }

  void check_bucket(size_t index) {
    const GradientExchange& exchange = *program_.gradients;
    const GradientBucket& bucket = exchange.buckets[index];
    const bool travels = !bucket.reduce_sends.empty() || !bucket.reduce_receives.empty();
    const int32_t reduce = one(index, OpKind::kGradReduce, travels),
                  add = one(index, OpKind::kGradAdd, true),
                  gather =
                      one(index, OpKind::kGradGather, travels && !exchange.distributed_optimizer),
                  update = one(index, OpKind::kOptimizer, true),
                  weights =
                      one(index, OpKind::kWeightGather, travels && exchange.distributed_optimizer);
    for (int32_t i = 0; i < static_cast<int32_t>(program_.ops.size()); ++i) {
      if (!adds_to(program_.ops[i], bucket)) continue;
      behind(reduce, i);
      behind(add, i);
    }
    behind(add, reduce);
    behind(gather, add);
    behind_sends(gather, reduce);
    behind(norm_, add);
    behind(update, norm_);
    behind(update, gather);
    behind_sends(update, gather);
    behind(weights, update);
  }

  bool adds_to(const Op& op, const GradientBucket& bucket) const {
    return op.pass == Pass::kBackward && op.nano_batch >= 0 &&
           std::ranges::any_of(program_.gradients->phases, [&](const PhaseGradients& phase) {
             return phase.phase == op.kind && phase.layer == op.layer &&
                    !intersect(phase.elements, bucket.elements).empty();
           });
  }

  const Program& program_;
  const ProgramOrder& order_;
  std::vector<std::string>& wrong_;
  std::vector<Found> found_;  // [bucket]
  int32_t norm_ = -1;
};

}  // namespace

void check_gradients(const Program& program, const ProgramOrder& order,
                     std::vector<std::string>& wrong) {
  Gradients(program, order, wrong).check();
}

void check_slices(std::span<const Program> programs, std::vector<std::string>& wrong) {
  std::vector<const GradientExchange*> ranks;
  for (const Program& program : programs) {
    if (program.gradients) ranks.push_back(program.gradients.get());
  }
  for (size_t bucket = 0; !ranks.empty() && bucket < ranks[0]->buckets.size(); ++bucket) {
    const Range& elements = ranks[0]->buckets[bucket].elements;
    std::vector<Range> slices;
    for (const GradientExchange* rank : ranks) slices.push_back(rank->buckets[bucket].own);
    std::ranges::sort(slices);
    int64_t end = elements.begin;
    for (const Range& slice : slices) {
      if (slice.empty()) continue;
      if (slice.begin != end) {
        wrong.push_back(fmt::format("bucket {}: element {} is added up by {} ranks", bucket,
                                    std::min(slice.begin, end), slice.begin > end ? "no" : "two"));
      }
      end = slice.end;
    }
    if (end != elements.end)
      wrong.push_back(fmt::format("bucket {}: its slices end at element {}, not {}", bucket, end,
                                  elements.end));
  }
}

}  // namespace distca
