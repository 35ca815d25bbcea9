// The rivals as schedulers: released planner, WLB, per-document context parallelism.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "distca/base/error.h"
#include "distca/plan/plan_testing.h"
#include "distca/plan/scheduler.h"
#include "distca/plan/summary.h"

namespace distca {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::request_for;

constexpr int64_t k1K = 1024;

std::vector<std::string> violations(const Plan& plan) {
  return validate(plan, checks_of(find_scheduler(plan.options.scheduler)));
}

std::vector<int64_t> pairs_of(const Plan& plan) {
  std::vector<int64_t> pairs;
  for (const ServerLoad& load : plan.load) pairs.push_back(load.pairs);
  return pairs;
}

std::string refusal(const PlanRequest& request) {
  try {
    make_plan(request);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kPlan);
    return error.what();
  }
  return "no error";
}

/// reference/paper.md, 14, vector 3: 16K, 2 x 8K, 4 x 4K, 8 x 2K tokens.
std::vector<int64_t> papers_example() {
  std::vector<int64_t> lengths{16 * k1K, 8 * k1K, 8 * k1K};
  lengths.insert(lengths.end(), 4, 4 * k1K);
  lengths.insert(lengths.end(), 8, 2 * k1K);
  return lengths;
}

TEST(GreedyOriginal, places_documents_as_the_papers_example) {
  // reference/paper.md, 14, vector 2.
  const Plan plan = make_plan(request_for(
      {32 * k1K, 8 * k1K, 8 * k1K, 4 * k1K, 4 * k1K, 4 * k1K, 4 * k1K}, 4, "greedy-original"));
  const auto& workers = plan.layout.workers;
  EXPECT_THAT(workers[0], ElementsAre(Segment{0, {0, 8 * k1K}}, Segment{0, {24 * k1K, 32 * k1K}}));
  EXPECT_THAT(workers[1], ElementsAre(Segment{0, {8 * k1K, 24 * k1K}}));
  EXPECT_THAT(workers[2], ElementsAre(Segment{1, {0, 8 * k1K}}, Segment{2, {0, 8 * k1K}}));
  EXPECT_EQ(workers[3].size(), 4);
  EXPECT_THAT(testing::home_load(plan),
              ElementsAre(268'443'648, 268'443'648, 67'117'056, 33'562'624));
}

TEST(GreedyOriginal, moves_what_the_papers_example_moves) {
  const Plan tenth = make_plan(request_for(papers_example(), 4, "greedy-original", 100'000));
  EXPECT_THAT(pairs_of(tenth), ElementsAre(62'934'785, 67'117'056, 58'729'984, 62'909'183));
  EXPECT_THAT(tenth.tasks,
              ::testing::Contains(Task{0, {8192 - 2815, 8192 + 2815}, {0, 11'007}, 3}));
  EXPECT_THAT(tenth.tasks, ::testing::Contains(Task{0, {5377 - 1536, 5377}, {0, 5377}, 2}));
  EXPECT_THAT(tenth.tasks, ::testing::Contains(Task{0, {12'543 - 1536, 12'543}, {0, 12'543}, 2}));
  EXPECT_THAT(violations(tenth), IsEmpty());

  const Plan twentieth = make_plan(request_for(papers_example(), 4, "greedy-original", 50'000));
  EXPECT_THAT(pairs_of(twentieth), ElementsAre(62'934'785, 62'930'433, 62'916'607, 62'909'183));
  EXPECT_THAT(twentieth.tasks,
              ::testing::Contains(Task{1, {4096 - 511, 4096 + 511}, {0, 4607}, 2}));
}

struct Published {
  const char* workload;
  double before, after;
  int64_t qkv_mib, o_mib, send_mib, receive_mib;
};

class PublishedNumbers : public ::testing::TestWithParam<Published> {};

TEST_P(PublishedNumbers, greedy_original_moves_the_same_bytes) {
  const Published& published = GetParam();
  PlanRequest request = testing::workload_request(published.workload);
  request.options.scheduler = "greedy-original";
  const Plan plan = make_plan(request);
  const PlanSummary summary = summarize(plan);
  const auto mib = [](int64_t bytes) { return (bytes + (1 << 19)) >> 20; };
  EXPECT_NEAR(max_over_mean(plan.cluster, testing::home_load(plan)), published.before, 5e-4);
  EXPECT_NEAR(summary.max_over_mean, published.after, 5e-4);
  EXPECT_EQ(mib(summary.qkv_bytes), published.qkv_mib);
  EXPECT_EQ(mib(summary.o_bytes), published.o_mib);
  EXPECT_EQ(mib(summary.max_send_bytes), published.send_mib);
  EXPECT_EQ(mib(summary.max_receive_bytes), published.receive_mib);
  EXPECT_THAT(violations(plan), IsEmpty());
}

// reference/pitfalls.md, "Planner numbers to beat".
INSTANTIATE_TEST_SUITE_P(
    , PublishedNumbers,
    ::testing::Values(Published{"pretrain_8x128k_0", 1.855, 1.036, 1568, 224, 445, 308},
                      Published{"pretrain_64x128k_1", 3.294, 1.064, 11'921, 1657, 908, 438},
                      Published{"pretrain_64x128k_2", 2.110, 1.029, 14'666, 1590, 801, 654},
                      Published{"prolong_64x128k_0", 3.606, 1.063, 11'694, 1553, 885, 485},
                      Published{"pretrain_512x128k_0", 2.221, 1.062, 109'588, 13'153, 932, 662}),
    [](const auto& info) { return std::string(info.param.workload); });

TEST(GreedyOriginal, leaves_a_donor_that_no_receiver_needs) {
  // One long document among workers that are all just below their share: each lacks less than the
  // tolerance, so nothing moves, far above 1 + tolerance.
  std::vector<int64_t> lengths{2000};
  lengths.insert(lengths.end(), 19, 1900);
  PlanRequest request = request_for(lengths, 20, "greedy-original", 100'000);
  request.options.tolerance_ppm = 10'000;
  const Plan plan = make_plan(request);
  EXPECT_GT(max_over_mean(plan), 1.01);
}

TEST(Rivals, random_batches_give_valid_plans) {
  Random random(11);
  for (const char* scheduler : {"greedy-original", "wlb", "per-document-cp"}) {
    for (int trial = 0; trial < 200; ++trial) {
      const int workers = 1 + static_cast<int>(random.below(8));
      const Plan plan = make_plan(request_for(testing::random_lengths(random), workers, scheduler));
      EXPECT_THAT(violations(plan), IsEmpty()) << scheduler;
    }
  }
}

TEST(Rivals, shapes_of_batches_that_break_planners) {
  const std::vector<std::vector<int64_t>> batches = {
      {}, {0}, {1}, {127}, {129, 1}, std::vector<int64_t>(16, 1024), {200'001}, {65'536, 0, 1, 1}};
  for (const char* scheduler : {"greedy-original", "wlb", "per-document-cp"}) {
    for (const auto& lengths : batches) {
      for (const int workers : {1, 2, 3, 7, 40}) {
        EXPECT_THAT(violations(make_plan(request_for(lengths, workers, scheduler))), IsEmpty())
            << scheduler << ": " << lengths.size() << " documents, " << workers << " workers";
      }
    }
  }
}

TEST(Rivals, a_dedicated_server_takes_its_share_from_the_original) {
  PlanRequest request = request_for(std::vector<int64_t>(40, 4096), 4, "greedy-original");
  request.cluster.capacity = {1, 2, 3, 4, 10};
  const Plan plan = make_plan(request);
  EXPECT_THAT(violations(plan), IsEmpty());
  EXPECT_GT(plan.load[4].pairs, 9 * plan.load[0].pairs);
}

TEST(Wlb, packs_the_longest_first_for_even_work) {
  const Plan plan = make_plan(request_for({30, 100, 40, 10, 100}, 2, "wlb"));
  // Lmax = 140. 100 -> worker 0, 100 -> worker 1, 40 -> 0 (140), 30 -> 1 (130), 10 -> 1 (140).
  EXPECT_THAT(plan.layout.workers[0], ElementsAre(Segment{1, {0, 100}}, Segment{2, {0, 40}}));
  EXPECT_THAT(plan.layout.workers[1],
              ElementsAre(Segment{4, {0, 100}}, Segment{0, {0, 30}}, Segment{3, {0, 10}}));
  EXPECT_EQ(summarize(plan).qkv_bytes, 0);
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

TEST(Rivals, layouts_that_break_a_promise_are_refused_to_schedulers_that_make_it) {
  PlanRequest request = request_for({1000}, 2, "greedy");
  request.options.layout = "wlb";
  EXPECT_THAT(refusal(request), AllOf(HasSubstr("layout wlb gives workers uneven tokens"),
                                      HasSubstr("scheduler greedy")));
  request.options.layout = "sequential-exact";
  EXPECT_THAT(refusal(request), HasSubstr("cuts documents anywhere"));
  request.options = {.scheduler = "wlb", .layout = "sequential"};
  EXPECT_THAT(refusal(request), HasSubstr("has a layout of its own, wlb"));
}

TEST(Rivals, only_the_original_is_refused_to_run) {
  for (const SchedulerEntry& scheduler : schedulers()) {
    if (scheduler.name == "greedy-original") {
      EXPECT_THROW(check_runs(scheduler), Error);
    } else {
      EXPECT_NO_THROW(check_runs(scheduler)) << scheduler.name;
    }
  }
}

}  // namespace
}  // namespace distca
