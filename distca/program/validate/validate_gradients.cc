// Buckets of gradients: each is summed once, in time, and untouched while it travels.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "distca/program/gradient_exchange.h"
#include "distca/program/validate/validate_checks.h"

namespace distca {
namespace {

class Gradients : Checker {
 public:
  using Checker::Checker;

  void check() {
    const size_t num_buckets = program_.gradients ? program_.gradients->buckets.size() : 0;
    if (num_buckets > 0 && !in_one_piece()) return;
    found_.assign(num_buckets, Found());
    for (int32_t i = 0; i < std::ssize(program_.ops); ++i) {
      const Op& op = program_.ops[i];
      if (op.kind == OpKind::kGradNorm) norm_ = i;
      if (op.bucket < 0) continue;
      int32_t& place = found_[op.bucket].of[static_cast<size_t>(op.kind)];
      if (place >= 0) say(i, "stands twice");
      place = i;
    }
    for (size_t bucket = 0; bucket < num_buckets; ++bucket) check_bucket(bucket);
    if (num_buckets > 0) check_backward();
  }

 private:
  /// [kind] The operations of a bucket. -1 means that there is none.
  struct Found {
    Found() { of.fill(-1); }
    std::array<int32_t, kNumOpKinds> of;
  };

  /// The bucket's operation of this kind; says so if it is there and should not be, or is not.
  int32_t one(size_t bucket, OpKind kind, bool wanted) {
    const int32_t i = found_[bucket].of[static_cast<size_t>(kind)];
    if ((i >= 0) != wanted)
      report(wrong_, "bucket {} has {}{}", bucket, wanted ? "no " : "a ", op_name(kind));
    return wanted ? i : -1;
  }

  /// Checks that what `before` computes, or receives, is there when `i` begins.
  void behind(int32_t i, int32_t before) {
    if (i < 0 || before < 0) return;
    if (before > i) return say(i, "comes before {}", numbered(before));
    if (!order_.is_over(before, i)) say(i, "does not wait for {}", numbered(before));
  }
  void behind_sends(int32_t i, int32_t before) {
    if (i >= 0 && before >= 0 && before < i && !order_.left(before, i))
      say(i, "writes what {} may still send", numbered(before));
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
    behind(add, reduce);
    behind(gather, add);
    behind_sends(gather, reduce);
    behind(norm_, add);
    behind(update, norm_);
    behind(update, gather);
    behind_sends(update, gather);
    behind(weights, update);
  }

  /// The buckets cover the gradients from the last element to the first.
  bool in_one_piece() {
    const std::vector<GradientBucket>& buckets = program_.gradients->buckets;
    for (size_t i = 0; i < buckets.size(); ++i) {
      const int64_t begin = i + 1 < buckets.size() ? buckets[i + 1].elements.end : 0;
      if (buckets[i].elements.begin == begin && !buckets[i].elements.empty()) continue;
      report(wrong_, "bucket {} begins at element {}, not {}", i, buckets[i].elements.begin, begin);
      return false;
    }
    return true;
  }

  /// Checks that all phases that add to a bucket have ended when it travels and is added up.
  void check_backward() {
    const GradientExchange& exchange = *program_.gradients;
    std::map<std::pair<OpKind, int>, std::vector<Range>> added;
    for (const PhaseGradients& phase : exchange.phases)
      added[{phase.phase, phase.layer}].push_back(phase.elements);
    for (int32_t i = 0; i < std::ssize(program_.ops); ++i) {
      const Op& op = program_.ops[i];
      if (op.pass != Pass::kBackward || op.nano_batch < 0) continue;
      // Weight gradients come after the phases that have left them, and complete both.
      const std::vector<OpKind> phases =
          op.kind != OpKind::kWeightGradient
              ? std::vector{op.kind}
              : std::vector{OpKind::kPreAttention, OpKind::kOutProjection, OpKind::kPostAttention};
      for (const OpKind phase : phases) {
        const auto found = added.find({phase, op.layer});
        if (found == added.end()) continue;
        for (const Range& elements : found->second) buckets_wait_for(i, elements);
      }
    }
  }
  void buckets_wait_for(int32_t i, const Range& elements) {
    const std::vector<GradientBucket>& buckets = program_.gradients->buckets;
    const auto lies_behind = [&](const GradientBucket& bucket) {
      return bucket.elements.begin >= elements.end;
    };
    auto bucket = std::ranges::partition_point(buckets, lies_behind);
    for (; bucket != buckets.end() && bucket->elements.end > elements.begin; ++bucket) {
      const Found& of = found_[static_cast<size_t>(bucket - buckets.begin())];
      behind(of.of[static_cast<size_t>(OpKind::kGradReduce)], i);
      behind(of.of[static_cast<size_t>(OpKind::kGradAdd)], i);
    }
  }

  std::vector<Found> found_;  // [bucket]
  int32_t norm_ = -1;
};

}  // namespace

void check_gradients(const Program& program, const ProgramOrder& order,
                     std::vector<std::string>& wrong) {
  Gradients(program, order, wrong).check();
}

namespace {

/// A rank with gradients.
struct Holder {
  int rank = 0;
  int stage = 0;
  std::vector<const GradientBucket*> buckets;  // that its group sums
};

/// Divides the buckets of all ranks into groups that sum them together. It finds by itself who
/// holds a bucket's weights: ranks of one stage that have the same part of them, or share it, and,
/// if they are tied, those of the first and the last stage.
class Groups {
 public:
  Groups(std::span<const Program> programs, std::vector<std::string>& wrong)
      : programs_(programs), wrong_(wrong) {
    for (size_t rank = 0; rank < programs.size(); ++rank) {
      const Stage& stage = programs[rank].stage;
      if (programs[rank].gradients)
        holders_[{stage.index, stage.tensor.index}].push_back(static_cast<int>(rank));
    }
    for (size_t rank = 0; rank < programs.size(); ++rank) add(static_cast<int>(rank));
  }
  /// By the ranks that sum the same buckets, in ascending order.
  const std::map<std::vector<int>, std::vector<Holder>>& all() const { return groups_; }

 private:
  void add(int rank) {
    const Program& program = programs_[rank];
    if (!program.gradients) return;
    const GradientExchange& exchange = *program.gradients;
    for (size_t i = 0; i < exchange.buckets.size(); ++i) {
      const GradientBucket& bucket = exchange.buckets[i];
      if (bucket.group < 0 || bucket.group >= std::ssize(exchange.groups)) {
        report(wrong_, "rank {}: bucket {} is summed by group {} of {}", rank, i, bucket.group,
               exchange.groups.size());
        continue;
      }
      const std::vector<int>& summed_by = exchange.groups[bucket.group];
      for (const PhaseGradients& phase : exchange.phases) {
        if (intersect(phase.elements, bucket.elements).empty()) continue;
        const std::vector<int> held_by = holders_of(program.stage, phase);
        if (held_by == summed_by) continue;
        report(wrong_, "rank {}: bucket {} is summed by ranks {}, ranks {} hold it", rank, i,
               fmt::join(summed_by, " "), fmt::join(held_by, " "));
        break;
      }
      std::vector<Holder>& holders = groups_[summed_by];  // groups of the same ranks are one
      if (holders.empty() || holders.back().rank != rank)
        holders.push_back({.rank = rank, .stage = program.stage.index, .buckets = {}});
      holders.back().buckets.push_back(&bucket);
    }
  }
  std::vector<int> holders_of(const Stage& stage, const PhaseGradients& phase) const {
    const int first = stage.tensor.index / phase.holders * phase.holders;
    std::vector<int> ranks;
    for (const auto& [place, holders] : holders_) {
      const auto& [index, tensor] = place;
      const bool is_end = index == 0 || index == stage.count - 1;
      if ((phase.is_tied ? is_end : index == stage.index) && tensor >= first &&
          tensor < first + phase.holders)
        ranks.insert(ranks.end(), holders.begin(), holders.end());
    }
    std::ranges::sort(ranks);
    return ranks;
  }

  std::span<const Program> programs_;
  std::vector<std::string>& wrong_;
  std::map<std::pair<int, int>, std::vector<int>> holders_;  // by stage and tensor index: ranks
  std::map<std::vector<int>, std::vector<Holder>> groups_;
};

/// A bucket as all ranks of a group have it.
class Slices {
 public:
  Slices(const std::vector<Holder>& ranks, size_t index, std::vector<std::string>& wrong)
      : ranks_(ranks), index_(index), wrong_(wrong) {}

  void check() {
    const Range& elements = bucket_of(ranks_[0]).elements;
    std::vector<Range> slices;  // relative to the bucket's begin
    for (const Holder& holder : ranks_) {
      const GradientBucket& bucket = bucket_of(holder);
      // Stages that tie a weight have it at places of their own.
      if (bucket.elements.size() != elements.size() ||
          (holder.stage == ranks_[0].stage && bucket.elements != elements))
        return say("rank {} has other elements", holder.rank);
      slices.push_back(
          {bucket.own.begin - bucket.elements.begin, bucket.own.end - bucket.elements.begin});
    }
    check_cover(elements, std::move(slices));
    for (const Holder& from : ranks_) {
      if (wrong_.empty()) check_peers_of(from);
      if (wrong_.empty()) check_messages_of(from);
    }
  }

 private:
  template <typename... Values>
  void say(fmt::format_string<Values...> text, Values&&... values) {
    report(wrong_, "{}bucket {}: {}", bucket_of(ranks_[0]).is_shared() ? "shared " : "", index_,
           fmt::format(text, std::forward<Values>(values)...));
  }

  /// Every element is added up by exactly one rank.
  void check_cover(const Range& elements, std::vector<Range> slices) {
    std::ranges::sort(slices);
    int64_t end = 0;
    for (const Range& slice : slices) {
      if (slice.empty()) continue;
      if (slice.begin != end) {
        say("element {} is added up by {} ranks", elements.begin + std::min(slice.begin, end),
            slice.begin > end ? "no" : "two");
      }
      end = slice.end;
    }
    if (end != elements.size())
      say("its slices end at element {}, not {}", elements.begin + end, elements.end);
  }

  /// A bucket travels between those that hold it alone.
  void check_peers_of(const Holder& from) {
    const GradientBucket& bucket = bucket_of(from);
    for (const MessageList* list : {&bucket.reduce_sends, &bucket.reduce_receives,
                                    &bucket.gather_sends, &bucket.gather_receives}) {
      for (const PeerMessage& message : list->messages) {
        if (!std::ranges::binary_search(ranks_, message.peer, {}, &Holder::rank))
          return say("rank {} exchanges it with rank {}, which does not hold it", from.rank,
                     message.peer);
      }
    }
  }

  /// Where a bucket begins among what is gathered, in bytes, as `holder` has it. Ranks of one stage
  /// have everything in the same place.
  int64_t gathered_begin(const Holder& holder) const {
    const GradientBucket& bucket = bucket_of(holder);
    int64_t begin = std::numeric_limits<int64_t>::max();
    for (const MessageList* list : {&bucket.gather_sends, &bucket.gather_receives}) {
      for (const PeerMessage& message : list->messages) begin = std::min(begin, message.offset);
    }
    return begin;
  }
  bool lie_alike(const Holder& from, int64_t sent, const Holder& to, int64_t arrives) const {
    if (from.stage == to.stage) return sent == arrives;
    return sent - gathered_begin(from) == arrives - gathered_begin(to);
  }

  /// A rank sends each other rank the other's slice, and everybody the same of what it has added
  /// up, which lies with them where it lies here, apart from everything else.
  void check_messages_of(const Holder& from) {
    const GradientBucket& bucket = bucket_of(from);
    std::vector<Range> gathered;  // bytes
    for (const Holder& to : ranks_) {
      if (to.rank == from.rank) continue;
      const GradientBucket& other = bucket_of(to);
      const PeerMessage *part = bucket.reduce_sends.with(to.rank),
                        *sum = bucket.gather_sends.with(to.rank),
                        *arrives = other.gather_receives.with(from.rank);
      if ((part == nullptr) != other.own.empty() || (sum == nullptr) != bucket.own.empty() ||
          (sum == nullptr) != (arrives == nullptr))
        return say("rank {} and rank {} exchange other slices than they add up", from.rank,
                   to.rank);
      const int64_t offset = other.own.begin - other.elements.begin;
      if (part != nullptr && part->offset * other.own.size() != offset * part->bytes)
        say("rank {} sends rank {} other elements than it adds up", from.rank, to.rank);
      if (sum == nullptr) continue;
      if (!lie_alike(from, sum->offset, to, arrives->offset) || sum->bytes != arrives->bytes)
        say("what rank {} sends rank {} arrives elsewhere", from.rank, to.rank);
      if (gathered.empty()) gathered.push_back({sum->offset, sum->offset + sum->bytes});
      if (gathered[0].begin != sum->offset || gathered[0].end != sum->offset + sum->bytes)
        say("rank {} sends rank {} another sum than others", from.rank, to.rank);
    }
    for (const PeerMessage& message : bucket.gather_receives.messages)
      gathered.push_back({message.offset, message.offset + message.bytes});
    std::ranges::sort(gathered);
    for (size_t i = 1; i < gathered.size(); ++i) {
      if (gathered[i].begin < gathered[i - 1].end)
        say("sums of two ranks arrive at byte {} of rank {}", gathered[i].begin, from.rank);
    }
  }

  const GradientBucket& bucket_of(const Holder& holder) const { return *holder.buckets[index_]; }

  const std::vector<Holder>& ranks_;
  size_t index_;
  std::vector<std::string>& wrong_;
};

void check_group(const std::vector<Holder>& ranks, std::vector<std::string>& wrong) {
  const size_t buckets = ranks[0].buckets.size();
  for (const Holder& holder : ranks) {
    if (holder.buckets.size() == buckets) continue;
    return report(wrong, "rank {} has {} buckets, rank {} has {}", holder.rank,
                  holder.buckets.size(), ranks[0].rank, buckets);
  }
  for (size_t i = 0; i < buckets; ++i) Slices(ranks, i, wrong).check();
}

}  // namespace

void check_slices(std::span<const Program> programs, std::vector<std::string>& wrong) {
  const Groups groups(programs, wrong);
  if (!wrong.empty()) return;
  for (const auto& [ranks, holders] : groups.all()) {
    if (ranks.size() == holders.size()) {
      check_group(holders, wrong);
    } else {
      report(wrong, "of ranks {}, {} have what they share", fmt::join(ranks, " "), holders.size());
    }
  }
}

}  // namespace distca
