// The baselines that `balanced` is compared with: WLB, Karmarkar-Karp, per-document context
// parallelism.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "distca/base/error.h"
#include "distca/plan/baselines/baselines.h"
#include "distca/plan/plan_summary.h"
#include "distca/plan/plan_testing.h"
#include "distca/plan/scheduler.h"

namespace distca {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::refusal;
using testing::request_for;

std::vector<std::string> violations(const Plan& plan) {
  return validate(plan, checks_of(find_scheduler(plan.options.scheduler)));
}

TEST(Baselines, random_batches_give_valid_plans) {
  Random random(11);
  for (const char* scheduler : {"wlb", "wlb-cp2", "wlb-cp4", "karmarkar-karp", "per-document-cp"}) {
    for (int trial = 0; trial < 200; ++trial) {
      const int workers = 1 + static_cast<int>(random.below(8));
      const Plan plan = make_plan(request_for(testing::random_lengths(random), workers, scheduler));
      EXPECT_THAT(violations(plan), IsEmpty()) << scheduler;
    }
  }
}

TEST(Baselines, shapes_of_batches_that_break_planners) {
  const std::vector<std::vector<int64_t>> batches = {
      {}, {0}, {1}, {127}, {129, 1}, std::vector<int64_t>(16, 1024), {200'001}, {65'536, 0, 1, 1}};
  for (const char* scheduler :
       {"wlb", "wlb-cp8", "wlb-cp16", "karmarkar-karp", "per-document-cp"}) {
    for (const auto& lengths : batches) {
      for (const int workers : {1, 2, 3, 7, 40}) {
        EXPECT_THAT(violations(make_plan(request_for(lengths, workers, scheduler))), IsEmpty())
            << scheduler << ": " << lengths.size() << " documents, " << workers << " workers";
      }
    }
  }
}

TEST(Wlb, packs_the_longest_first_for_even_work) {
  const Plan plan = make_plan(request_for({30, 100, 40, 10, 100}, 2, "wlb"));
  // Lmax = 140. 100 -> worker 0, 100 -> worker 1, 40 -> 0 (140), 30 -> 1 (130), 10 -> 1 (140).
  EXPECT_THAT(plan.layout.workers[0], ElementsAre(Segment{1, {0, 100}}, Segment{2, {0, 40}}));
  EXPECT_THAT(plan.layout.workers[1],
              ElementsAre(Segment{4, {0, 100}}, Segment{0, {0, 30}}, Segment{3, {0, 10}}));
  EXPECT_EQ(summarize(plan).qkv_bytes, 0);
}

TEST(WlbCp, a_group_of_one_is_wlb_and_one_of_all_is_per_document_cp) {
  const auto layout = [](const char* scheduler, int workers) {
    return make_plan(request_for({9000, 5000, 3000, 700, 300}, workers, scheduler)).layout;
  };
  EXPECT_EQ(layout("wlb-cp2", 3), layout("wlb", 3)) << "no two workers of three";
  // Documents from the longest on, which is how they come here.
  EXPECT_EQ(layout("wlb-cp4", 4), layout("per-document-cp", 4));
  EXPECT_EQ(layout("wlb-cp16", 4), layout("wlb-cp4", 4));
}

TEST(WlbCp, groups_share_each_of_their_documents) {
  const Plan plan = make_plan(request_for({2048, 2048, 1024, 1024}, 4, "wlb-cp2"));
  // The first and the third document are of the group of workers 0 and 1, in head and tail halves.
  EXPECT_THAT(plan.layout.workers[0], ElementsAre(Segment{0, {0, 512}}, Segment{0, {1536, 2048}},
                                                  Segment{2, {0, 256}}, Segment{2, {768, 1024}}));
  EXPECT_THAT(plan.layout.workers[3], ElementsAre(Segment{1, {512, 1536}}, Segment{3, {256, 768}}));
  EXPECT_EQ(plan.load[0].pairs, plan.load[1].pairs);
  EXPECT_GT(summarize(plan).qkv_bytes, 0);
}

TEST(Wlb, what_fits_nowhere_goes_to_the_least_work) {
  // Lmax = 105: 200 fits nowhere and waits; 6 -> worker 0, 4 -> worker 1, then 200 -> worker 1.
  const Plan plan = make_plan(request_for({200, 6, 4}, 2, "wlb"));
  EXPECT_THAT(plan.layout.workers[0], ElementsAre(Segment{1, {0, 6}}));
  EXPECT_THAT(plan.layout.workers[1], ElementsAre(Segment{2, {0, 4}}, Segment{0, {0, 200}}));
}

TEST(Wlb, a_full_worker_of_little_work_is_passed_over) {
  // Work counts squares: 60,000 tokens in one document outweigh 64,000 in many. With a cap of
  // 80,000 the worker of short documents fills up first.
  std::vector<int64_t> lengths{60'000};
  lengths.insert(lengths.end(), 12, 8000);
  PlanRequest request = request_for(lengths, 2, "wlb");
  request.cluster.max_tokens_per_worker = 80'000;
  const Plan plan = make_plan(request);
  EXPECT_EQ(plan.layout.num_tokens(0), 60'000 + 2 * 8000);
  EXPECT_EQ(plan.layout.num_tokens(1), 10 * 8000);
}

TEST(Wlb, a_cap_that_whole_documents_break_is_refused) {
  PlanRequest request = request_for({5000, 100}, 4, "wlb");
  request.cluster.max_tokens_per_worker = 2000;
  EXPECT_THAT(refusal(request),
              AllOf(HasSubstr("layout wlb"), HasSubstr("5000"), HasSubstr("is 2000")));
  request.cluster.max_tokens_per_worker = 1000;
  EXPECT_THAT(refusal(request), HasSubstr("5100 tokens do not fit 4 workers"));
}

int64_t most_work(const Plan& plan) {
  int64_t most = 0;
  for (const std::vector<Segment>& worker : plan.layout.workers) {
    int64_t work = 0;
    for (const Segment& segment : worker) work += document_work(segment.tokens.size());
    most = std::max(most, work);
  }
  return most;
}

TEST(KarmarkarKarp, differences_are_taken_from_the_largest_on) {
  // The work of such short documents is nearly in proportion to their tokens. 8 and 7 differ by 1,
  // 6 and 5 by 1; 4 and the first pair by 3; that and the second pair by 2: 16 and 14 tokens. The
  // longest first, each to the least work, would be 17 and 13.
  const Plan plan = make_plan(request_for({8, 7, 6, 5, 4}, 2, "karmarkar-karp"));
  EXPECT_THAT(plan.layout.workers[0],
              ElementsAre(Segment{1, {0, 7}}, Segment{3, {0, 5}}, Segment{4, {0, 4}}));
  EXPECT_THAT(plan.layout.workers[1], ElementsAre(Segment{0, {0, 8}}, Segment{2, {0, 6}}));
  EXPECT_EQ(summarize(plan).qkv_bytes, 0);
}

TEST(KarmarkarKarp, work_is_no_less_even_than_by_wlb_and_as_even_as_whole_documents_allow) {
  Random random(5);
  for (int trial = 0; trial < 50; ++trial) {
    std::vector<int64_t> lengths;
    for (int i = 0; i < 60; ++i) lengths.push_back(1 + static_cast<int64_t>(random.below(30'000)));
    const int workers = 2 + static_cast<int>(random.below(6));
    const int64_t most = most_work(make_plan(request_for(lengths, workers, "karmarkar-karp")));
    EXPECT_LE(most, most_work(make_plan(request_for(lengths, workers, "wlb"))));
    int64_t all = 0;
    for (const int64_t length : lengths) all += document_work(length);
    EXPECT_LT(most, 1.01 * static_cast<double>(all) / workers);
  }
  // A document longer than all others together is alone.
  const Plan plan = make_plan(request_for({100, 100, 90'000, 100}, 3, "karmarkar-karp"));
  EXPECT_THAT(plan.layout.workers[0], ElementsAre(Segment{2, {0, 90'000}}));
}

TEST(KarmarkarKarp, a_cap_that_it_breaks_is_refused) {
  PlanRequest request = request_for({5000, 100}, 4, "karmarkar-karp");
  request.cluster.max_tokens_per_worker = 2000;
  EXPECT_THAT(refusal(request), AllOf(HasSubstr("layout karmarkar-karp"), HasSubstr("is 2000")));
}

TEST(PerDocumentCp, worker_i_holds_shards_i_and_its_mirror) {
  const Plan plan = make_plan(request_for({6 * 1280, 6 * 128 + 5}, 3, "per-document-cp"));
  const auto& workers = plan.layout.workers;
  for (int64_t i = 0; i < 2; ++i) {
    EXPECT_EQ(workers[i][0], (Segment{0, {1280 * i, 1280 * (i + 1)}}));
    EXPECT_EQ(workers[i][1], (Segment{0, {1280 * (5 - i), 1280 * (6 - i)}}));
  }
  EXPECT_EQ(workers[2][0], (Segment{0, {2 * 1280, 4 * 1280}}));  // the two middle ones are one
  // Seven blocks, the last short: the one over goes to worker 0, whose tail ends the document.
  EXPECT_EQ(workers[0][2], (Segment{1, {0, 256}}));
  EXPECT_EQ(workers[0][3], (Segment{1, {768, 773}}));
}

TEST(PerDocumentCp, short_documents_spread_over_the_workers) {
  const Plan plan = make_plan(request_for(std::vector<int64_t>(40, 256), 8, "per-document-cp"));
  for (int worker = 0; worker < 8; ++worker) {
    EXPECT_EQ(plan.layout.num_tokens(worker), 40 * 256 / 8);
  }
}

TEST(PerDocumentCp, tokens_and_load_are_nearly_even) {
  const Plan plan = make_plan([] {
    PlanRequest request = testing::workload_request("pretrain_64x128k_1");
    request.options.scheduler = "per-document-cp";
    return request;
  }());
  const PlanSummary summary = summarize(plan);
  EXPECT_LT(summary.tokens_max - summary.tokens_min, 4 * 128);
  EXPECT_LT(max_over_mean(plan), 1.03);
  for (const ServerLoad& load : plan.load) EXPECT_EQ(load.o_send_bytes, 0);
}

TEST(Baselines, layouts_that_break_a_promise_are_refused_to_schedulers_that_make_it) {
  PlanRequest request = request_for({1000}, 2, "greedy");
  request.options.layout = "wlb";
  EXPECT_THAT(refusal(request), AllOf(HasSubstr("layout wlb gives workers uneven tokens"),
                                      HasSubstr("scheduler greedy")));
  request.options = {.scheduler = "wlb", .layout = "sequential"};
  EXPECT_THAT(refusal(request), HasSubstr("has a layout of its own, wlb"));
}

TEST(AllGather, every_worker_of_a_given_group_gets_all_keys_of_its_documents) {
  PlanRequest request = request_for({4096, 0, 1024, 1024}, 4, "all-gather");
  request.options.layout = "given-groups";
  const Plan plan = make_plan(request);
  EXPECT_THAT(violations(plan), IsEmpty());
  for (const Task& task : plan.tasks) {
    EXPECT_EQ(task.kv, (Range{0, task.document == 0 ? 4096 : 1024}));
    EXPECT_EQ(task.server < 2, task.document == 0) << "the first two workers are the first group";
  }
  // Each worker of a group lacks one half of all keys.
  const int64_t key_bytes = request.shape.kv_token_bytes();
  for (const ServerLoad& load : plan.load)
    EXPECT_EQ(load.receive_bytes, (load.pairs > 2'000'000 ? 2048 : 1024) * key_bytes);
  request.options.layout = "per-document-cp";
  EXPECT_THAT(make_plan(request).load,
              ::testing::Each(::testing::Field(&ServerLoad::receive_bytes, (4608 * key_bytes))));
}

}  // namespace
}  // namespace distca
