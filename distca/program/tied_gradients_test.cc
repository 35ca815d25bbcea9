// Weights that the first and the last stage of a pipeline both hold: the stages cut and sum their
// gradients alike.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "distca/program/pipeline_testing.h"
#include "distca/program/validate/validate.h"

namespace distca::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<GradientBucket> tied_buckets(const GradientExchange& exchange) {
  std::vector<GradientBucket> tied = exchange.buckets;
  std::erase_if(tied, [](const GradientBucket& bucket) { return !bucket.is_shared(); });
  return tied;
}

/// The gradient exchanges of `replicas` ranks of the first of 3 stages, then of the last. 300 tied
/// blocks lie first on the first stage, and behind `before` other blocks on the last.
std::vector<GradientExchange> both_stages(int replicas, int64_t before, int64_t bucket_elements,
                                          int64_t most_buckets) {
  std::vector<GradientExchange> all;
  for (const int stage : {0, 2}) {
    for (int rank = 0; rank < replicas; ++rank) {
      GradientExchangeRequest request{
          .elements = (stage == 0 ? 300 + 500 : before + 300) * int64_t{16},
          .block = 16,
          .bucket_elements = bucket_elements,
          .most_buckets = most_buckets,
          .rank = stage * replicas + rank,
          .ranks = consecutive(stage * replicas, replicas)};
      const int64_t begin = stage == 0 ? 0 : before;
      request.shared = {{.elements = {begin * 16, (begin + 300) * 16}}};
      for (const int holder : {0, 2}) {
        for (int replica = 0; replica < replicas; ++replica)
          request.shared[0].ranks.push_back(holder * replicas + replica);
      }
      all.push_back(make_gradient_exchange(request));
    }
  }
  return all;
}

TEST(TiedGradients, both_stages_cut_and_divide_them_alike_wherever_they_lie) {
  for (const int replicas : {1, 2, 3}) {
    for (const int64_t before : {1, 57, 4000}) {
      for (const int64_t bucket : {0, 16, 160, 1000, 100000}) {
        for (const int64_t most : {int64_t{3}, int64_t{10}, kMostBuckets}) {
          const std::vector<GradientExchange> all = both_stages(replicas, before, bucket, most);
          const std::vector<GradientBucket> first = tied_buckets(all[0]);
          int64_t blocks = 0;
          for (size_t b = 0; b < first.size(); ++b) {
            blocks += first[b].elements.size() / 16;
            std::vector<Range> slices;  // relative to the bucket's begin
            for (const GradientExchange& exchange : all) {
              ASSERT_LE(exchange.buckets.size(), static_cast<size_t>(most));
              const std::vector<GradientBucket> tied = tied_buckets(exchange);
              ASSERT_EQ(tied.size(), first.size());
              ASSERT_EQ(tied[b].elements.size(), first[b].elements.size());
              slices.push_back({tied[b].own.begin - tied[b].elements.begin,
                                tied[b].own.end - tied[b].elements.begin});
            }
            std::ranges::sort(slices);
            int64_t end = 0;
            for (const Range& slice : slices) {
              EXPECT_EQ(slice.begin, end);
              end = slice.end;
            }
            EXPECT_EQ(end, first[b].elements.size());
          }
          EXPECT_EQ(blocks, 300);
        }
      }
    }
  }
}

TEST(TiedGradients, all_ranks_of_both_stages_own_a_part) {
  const std::vector<GradientExchange> all = both_stages(2, 57, 16 * 30, kMostBuckets);
  for (const GradientExchange& exchange : all) {
    int64_t own = 0;
    for (const GradientBucket& bucket : tied_buckets(exchange)) own += bucket.own.size();
    EXPECT_NEAR(static_cast<double>(own), 300 * 16 / 4.0, 10 * 16);
  }
}

TEST(TiedGradients, every_pipeline_that_ties_is_valid) {
  for (const int stages : {2, 3, 4}) {
    for (const OverlapName& overlap : kOverlaps) {
      for (const Order order : {Order::kAligned, Order::kMixed, Order::kAtHome}) {
        for (const int64_t bucket : {16, 48, 1000}) {
          for (const int replicas : {1, 2, 3}) {
            const PipelineStyle style{
                .layers = std::vector<int64_t>(stages, 1),
                .lengths = uneven_lengths(stages),
                .replicas = replicas,
                .overlap = overlap.overlap,
                .order = order,
                .gradients = {bucket, /*distributed_optimizer=*/(stages + replicas) % 2 == 0,
                              /*overlaps=*/bucket != 48}};
            PipelineStyle tied = style;
            tied.gradients.ties = true;
            EXPECT_THAT(validate(pipeline_programs(tied)), IsEmpty())
                << stages << " stages of " << replicas << ", " << overlap.name << ", order "
                << static_cast<int>(order) << ", buckets of " << bucket;
          }
        }
      }
    }
  }
}

/// Three stages of two ranks.
PipelineStyle style_of(bool distributed) {
  return {.layers = {1, 1, 1},
          .lengths = uneven_lengths(4),
          .replicas = 2,
          .gradients = {.bucket_elements = 80, .distributed_optimizer = distributed, .ties = true}};
}

TEST(TiedGradients, they_travel_behind_everything_else_of_both_stages) {
  for (const Program& program : pipeline_programs(style_of(false))) {
    bool behind = false;
    int tied = 0;
    for (const Op& op : program.ops) {
      if (op.bucket < 0 || op.kind == OpKind::kOptimizer) continue;
      behind |= program.gradients->buckets[op.bucket].is_shared();
      EXPECT_EQ(program.gradients->buckets[op.bucket].is_shared(), behind) << short_name(op);
      tied += op.kind == OpKind::kGradReduce && behind ? 1 : 0;
    }
    const bool is_end = program.stage.is_first() || program.stage.is_last();
    EXPECT_EQ(tied, is_end ? 2 : 0) << "10 blocks in buckets of 5";
  }
}

/// A way to spoil what rank 4, the first of the last stage, exchanges.
struct TiedBreak {
  const char* name;
  void (*spoil)(GradientExchange&);
  const char* says;
};

void of_first_tied(GradientExchange& exchange, const std::function<void(GradientBucket&)>& spoil) {
  spoil(*std::ranges::find(exchange.buckets, true, &GradientBucket::is_shared));
}

const TiedBreak kTiedBreaks[] = {
    {"one_that_counts_as_the_stages_own",
     [](GradientExchange& e) { of_first_tied(e, [](GradientBucket& b) { b.group = 0; }); },
     "is summed by ranks 4 5, ranks 0 1 4 5 hold it"},
    {"one_of_the_stage_that_counts_as_tied",
     [](GradientExchange& e) { e.buckets.back().group = 1; },
     "is summed by ranks 0 1 4 5, ranks 4 5 hold it"},
    {"a_sum_that_arrives_elsewhere_in_the_other_stage",
     [](GradientExchange& e) {
       of_first_tied(e, [](GradientBucket& b) { b.gather_receives.messages[0].offset += 16; });
     },
     "arrives elsewhere"},
    {"another_slice_than_the_other_stage_takes",
     [](GradientExchange& e) { of_first_tied(e, [](GradientBucket& b) { b.own.begin -= 16; }); },
     "added up by two ranks"},
    {"a_slice_that_nobody_takes",
     [](GradientExchange& e) { of_first_tied(e, [](GradientBucket& b) { b.own.begin += 16; }); },
     "added up by no ranks"},
    {"parts_for_the_wrong_rank_of_the_other_stage",
     [](GradientExchange& e) {
       of_first_tied(e, [](GradientBucket& b) {
         std::swap(b.reduce_sends.messages[0].offset, b.reduce_sends.messages[1].offset);
       });
     },
     "other elements than it adds up"},
};

TEST(TiedGradients, each_way_to_break_them_on_one_rank_is_found) {
  for (const bool distributed : {false, true}) {
    const std::vector<Program> all = pipeline_programs(style_of(distributed));
    for (const TiedBreak& broken : kTiedBreaks) {
      std::vector<Program> spoilt = all;
      auto own = std::make_shared<GradientExchange>(*all[4].gradients);
      broken.spoil(*own);
      spoilt[4].gradients = own;
      EXPECT_THAT(validate(spoilt), Contains(HasSubstr(broken.says))) << broken.name;
    }
  }
}

/// The programs' exchanges made again from requests that `change` has changed.
std::vector<Program> made_again(const PipelineStyle& style,
                                const std::function<void(GradientExchangeRequest&)>& change) {
  std::vector<Program> programs = pipeline_programs(style);
  for (int rank = 0; rank < style.workers(); ++rank) {
    GradientExchangeRequest request = gradients_of_stage(style, programs[rank].stage, rank);
    change(request);
    programs[rank].gradients =
        std::make_shared<const GradientExchange>(make_gradient_exchange(request));
  }
  return programs;
}

TEST(TiedGradients, another_group_of_ranks_is_found) {
  const PipelineStyle style = style_of(false);
  EXPECT_THAT(validate(made_again(style, [](GradientExchangeRequest&) {})), IsEmpty());
  // Each stage sums its own copy's gradients alone.
  EXPECT_THAT(validate(made_again(style,
                                  [](GradientExchangeRequest& request) {
                                    if (!request.shared.empty())
                                      request.shared[0].ranks = request.ranks;
                                  })),
              Contains(HasSubstr("is summed by ranks 4 5, ranks 0 1 4 5 hold it")));
  // One replica of each stage sums them without the others.
  EXPECT_THAT(
      validate(made_again(style,
                          [](GradientExchangeRequest& request) {
                            if (!request.shared.empty())
                              request.shared[0].ranks = {request.rank % 2, 4 + request.rank % 2};
                          })),
      Contains(HasSubstr("is summed by ranks 0 4, ranks 0 1 4 5 hold it")));
  // A stage between them takes part.
  EXPECT_THAT(validate(made_again(style,
                                  [](GradientExchangeRequest& request) {
                                    if (request.shared.empty())
                                      request.shared = {{.elements = {0, 160}}};
                                    request.shared[0].ranks = {0, 1, 2, 3, 4, 5};
                                  })),
              Not(IsEmpty()));
}

TEST(TiedGradients, a_middle_stage_that_has_some_is_found) {
  std::vector<Program> programs = pipeline_programs(style_of(false));
  auto own = std::make_shared<GradientExchange>(*programs[2].gradients);
  own->buckets[0].group = 1;
  programs[2].gradients = own;
  EXPECT_THAT(validate(programs), Contains(HasSubstr("bucket 0 is summed by group 1 of 1")));
}

}  // namespace
}  // namespace distca::testing
