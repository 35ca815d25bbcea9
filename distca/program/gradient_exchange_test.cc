#include "distca/program/gradient_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "distca/program/program_testing.h"
#include "distca/program/validate/validate.h"

namespace distca::testing {
namespace {

using ::testing::Contains;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::vector<std::vector<int64_t>> kLengths = {{2000, 300, 100}, {1500, 900}};

std::vector<Program> programs(int workers, int dedicated, const Style& style) {
  return programs_of(plan_step(kLengths, pool(workers, dedicated, true)), style);
}

TEST(GradientExchange, slices_of_all_ranks_are_the_buckets_and_messages_match) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (const int64_t bucket : {16, 48, 1000, 100000}) {
      std::vector<std::shared_ptr<const GradientExchange>> all;
      for (int rank = 0; rank < ranks; ++rank)
        all.push_back(gradients_of({.gradients = {.bucket_elements = bucket}}, rank, ranks));
      int64_t begin = all[0]->buckets[0].elements.end;
      EXPECT_EQ(begin, (10 + 2 * 100 + 30) * 16);
      for (size_t b = 0; b < all[0]->buckets.size(); ++b) {
        EXPECT_EQ(all[0]->buckets[b].elements.end, begin) << "the last elements come first";
        begin = all[0]->buckets[b].elements.begin;
        int64_t end = begin;
        for (int part = 0; part < ranks; ++part) {
          const size_t rank = (part + ranks * all[0]->buckets.size() - b) % ranks;
          const GradientBucket& mine = all[rank]->buckets[b];
          EXPECT_EQ(mine.own.begin, end);
          EXPECT_EQ(mine.own.begin % 16, 0);
          end = mine.own.end;
          EXPECT_EQ(mine.reduce_receives.bytes, mine.own.size() * 4 * (ranks - 1));
          EXPECT_EQ(mine.gather_sends.bytes, mine.own.size() * 4 * (ranks - 1));
          EXPECT_EQ(mine.reduce_sends.bytes, (mine.elements.size() - mine.own.size()) * 4);
        }
        EXPECT_EQ(end, all[0]->buckets[b].elements.end);
      }
      EXPECT_EQ(begin, 0);
    }
  }
}

TEST(GradientExchange, there_are_never_too_many_buckets) {
  const GradientExchange huge = make_gradient_exchange(
      {.elements = int64_t{1} << 50, .block = 4096, .bucket_elements = 1, .ranks = {0, 1}});
  EXPECT_LE(huge.buckets.size(), static_cast<size_t>(kMostBuckets));
  EXPECT_EQ(huge.buckets.back().elements.begin, 0);
}

TEST(GradientExchange, what_backward_completes_last_has_buckets_of_its_own) {
  for (const int64_t bucket : {16 * 32, 16 * 45, 100000}) {
    const auto gradients = gradients_of({.gradients = {.bucket_elements = bucket}}, 0, 2);
    // The embedding and pre_attention of the first layer.
    EXPECT_THAT(gradients->buckets,
                Contains(Field(&GradientBucket::elements, Field(&Range::end, 16 * (10 + 30)))));
  }
}

TEST(GradientExchange, every_program_that_sums_is_valid) {
  for (const OverlapName& overlap : kOverlaps) {
    for (const auto& [workers, dedicated] : {std::pair{1, 0}, {2, 0}, {3, 1}, {4, 0}, {7, 2}}) {
      for (const int64_t bucket : {16, 160, 1000, 100000}) {
        for (const bool distributed : {false, true}) {
          for (const bool overlaps : {false, true}) {
            const auto all = programs(workers, dedicated,
                                      {.overlap = overlap.overlap,
                                       .num_layers = 3,
                                       .gradients = {bucket, distributed, overlaps}});
            EXPECT_THAT(validate(all), IsEmpty())
                << overlap.name << " " << workers << " workers, buckets of " << bucket;
          }
        }
      }
    }
  }
}

TEST(GradientExchange, of_weights_are_the_operations_of_buckets_and_the_norm) {
  std::set<OpKind> of_weights;
  for (const bool distributed : {false, true}) {
    const Style style{.gradients = {.bucket_elements = 160, .distributed_optimizer = distributed}};
    const Program program = programs(2, 1, style)[0];
    for (const Op& op : program.ops) {
      EXPECT_EQ(is_of_weights(op.kind), op.bucket >= 0 || op.kind == OpKind::kGradNorm)
          << describe(op);
      if (is_of_weights(op.kind)) of_weights.insert(op.kind);
    }
  }
  EXPECT_EQ(of_weights.size(), 6U) << "all that sum, update or send were seen";
}

int32_t index_of(const Program& program, const std::string& name) {
  const auto found = std::ranges::find(program.ops, name, short_name);
  return found == program.ops.end() ? -1 : static_cast<int32_t>(found - program.ops.begin());
}

TEST(GradientExchange, buckets_travel_under_backward_and_behind_the_messages_of_attention) {
  const Program program = programs(2, 0, {.gradients = {.bucket_elements = 30 * 16}})[0];
  // The head's bucket is complete after the last loss, long before the end.
  const int32_t reduce = index_of(program, "grad_reduce 0"), add = index_of(program, "grad_add 0");
  EXPECT_GT(reduce, index_of(program, "loss b'"));
  EXPECT_LT(add, index_of(program, "pre_attention 0a'"));
  EXPECT_EQ(program.ops[reduce - 1].stream, Stream::kComm) << "not before what is waited for";
  int behind = 0;
  for (size_t i = index_of(program, "embed b'"); i < program.ops.size(); ++i)
    behind += program.ops[i].kind == OpKind::kGradReduce ? 1 : 0;
  EXPECT_LE(behind, 3) << "of 8 buckets";
  // A reduce has the time of half a layer: two messages of core attention are issued before it is
  // waited for.
  for (size_t i = reduce; i < program.ops.size() && program.ops[i].bucket <= 2; ++i) {
    if (program.ops[i].kind != OpKind::kGradAdd) continue;
    const auto from = index_of(program, "grad_reduce " + std::to_string(program.ops[i].bucket));
    EXPECT_GE(std::count_if(program.ops.begin() + from, program.ops.begin() + static_cast<int>(i),
                            [](const Op& op) {
                              return op.kind == OpKind::kDispatch || op.kind == OpKind::kCombine;
                            }),
              2)
        << short_name(program.ops[i]);
  }
}

TEST(GradientExchange, a_large_head_leaves_evenly) {
  const Program program = programs(
      2, 0, {.num_layers = 12, .gradients = {.bucket_elements = 160, .head_blocks = 1000}})[0];
  int behind = 0, most = 0;
  for (const Op& op : program.ops) {
    if (short_name(op) == "dispatch 6a'") break;
    if (op.kind == OpKind::kDispatch || op.kind == OpKind::kCombine) behind = 0;
    behind += op.kind == OpKind::kGradReduce ? 1 : 0;
    most = std::max(most, behind);
  }
  EXPECT_GT(most, 2);
  EXPECT_LE(most, 6) << "of 100 that are complete at once, beside 48 messages";
}

TEST(GradientExchange, without_overlap_all_of_the_sum_is_behind_backward) {
  for (const Style& style :
       {Style{.gradients = {.bucket_elements = 160, .overlaps = false}},
        Style{.overlap = Overlap::kNone, .gradients = {.bucket_elements = 160}}}) {
    const Program program = programs(2, 0, style)[0];
    EXPECT_GT(index_of(program, "grad_reduce 0"), index_of(program, "embed b'"));
  }
}

TEST(GradientExchange, few_parts_are_held_at_a_time) {
  const Program program =
      programs(2, 0, {.num_layers = 8, .gradients = {.bucket_elements = 160}})[0];
  const auto parts = std::ranges::count(program.buffers, BufferRole::kGradParts, &Buffer::role);
  EXPECT_GE(parts, 2);
  EXPECT_LE(parts, 24) << "of " << program.gradients->buckets.size() << " buckets";
}

struct GradientBreak {
  const char* name;
  void (*spoil)(Program&);
  const char* says;
  bool distributed = false;
};

Op& gradient_op(Program& program, const std::string& name) {
  return program.ops[index_of(program, name)];
}

const GradientBreak kGradientBreaks[] = {
    {"a_reduce_that_does_not_wait",
     [](Program& p) { gradient_op(p, "grad_reduce 0").wait_for.clear(); }, "does not wait for"},
    {"a_sum_before_its_parts", [](Program& p) { gradient_op(p, "grad_add 0").wait_for.clear(); },
     "does not wait for"},
    {"a_gather_over_what_is_sent",
     [](Program& p) { gradient_op(p, "grad_gather 0").wait_sends.clear(); }, "may still send"},
    {"an_update_before_the_sums_are_there",
     [](Program& p) { gradient_op(p, "optimizer 0").wait_for.clear(); }, "does not wait for"},
    {"an_update_of_what_is_sent",
     [](Program& p) { gradient_op(p, "optimizer 0").wait_sends.clear(); }, "may still send"},
    {"a_bucket_twice", [](Program& p) { gradient_op(p, "grad_add 1").bucket = 0; }, "stands twice"},
    {"a_bucket_that_nobody_updates", [](Program& p) { gradient_op(p, "optimizer 1").bucket = -1; },
     "bucket 1 has no optimizer"},
    {"weights_gathered_before_the_update",
     [](Program& p) { gradient_op(p, "weight_gather 0").wait_for.clear(); }, "does not wait for",
     true},
    {"another_buckets_parts",
     [](Program& p) { gradient_op(p, "grad_add 0").reads = gradient_op(p, "grad_add 1").reads; },
     "(grad_parts)"},
    {"no_such_bucket", [](Program& p) { gradient_op(p, "grad_add 1").bucket = 99; },
     "bucket 99 of"},
};

TEST(GradientExchange, each_way_to_break_a_sum_is_found) {
  for (const GradientBreak& broken : kGradientBreaks) {
    std::vector<Program> all = programs(
        2, 0, {.gradients = {.bucket_elements = 160, .distributed_optimizer = broken.distributed}});
    broken.spoil(all[0]);
    EXPECT_THAT(validate(all[0]), Contains(HasSubstr(broken.says))) << broken.name;
  }
}

TEST(GradientExchange, messages_that_go_elsewhere_are_found) {
  const std::vector<Program> all = programs(3, 0, {.gradients = {.bucket_elements = 480}});
  const std::pair<void (*)(GradientBucket&), const char*> breaks[] = {
      {[](GradientBucket& b) {
         std::swap(b.reduce_sends.messages[0].offset, b.reduce_sends.messages[1].offset);
       },
       "other elements than it adds up"},
      {[](GradientBucket& b) { b.gather_sends.messages[1].offset += 64; }, "arrives elsewhere"},
      {[](GradientBucket& b) { b.gather_receives.messages[0].offset += 64; }, "arrives elsewhere"},
      {[](GradientBucket& b) { b.elements.end += 16; }, "other elements"},
  };
  for (const auto& [spoil, says] : breaks) {
    std::vector<Program> spoilt = all;
    auto own = std::make_shared<GradientExchange>(*all[1].gradients);
    spoil(own->buckets[0]);
    spoilt[1].gradients = own;
    EXPECT_THAT(validate(spoilt), Contains(HasSubstr(says)));
  }
  std::vector<Program> fewer = all;
  auto own = std::make_shared<GradientExchange>(*all[1].gradients);
  own->buckets.pop_back();
  fewer[1].gradients = own;
  EXPECT_FALSE(validate(fewer).empty());
}

TEST(GradientExchange, an_element_that_two_ranks_or_none_add_up_is_found) {
  std::vector<Program> all = programs(2, 0, {.gradients = {.bucket_elements = 160}});
  for (const int64_t moved : {-16, 16}) {
    auto own = std::make_shared<GradientExchange>(*all[1].gradients);
    own->buckets[0].own.begin += moved;
    std::vector<Program> spoilt = all;
    spoilt[1].gradients = own;
    EXPECT_THAT(validate(spoilt),
                Contains(HasSubstr(moved < 0 ? "added up by two ranks" : "added up by no ranks")));
  }
}

}  // namespace
}  // namespace distca::testing
