#include "distca/plan/pipeline/pipeline_plan.h"

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "distca/base/hash.h"
#include "distca/cost/finish_time.h"
#include "distca/plan/pipeline/pipeline_testing.h"
#include "distca/plan/pipeline/validate_pipeline.h"
#include "distca/plan/plan_batch_input.h"
#include "distca/plan/plan_summary.h"

namespace distca {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::pipeline_request;
using testing::set_attention_share;

constexpr BalanceTarget kEvennesses[] = {BalanceTarget::kWhole, BalanceTarget::kAttention};

std::vector<std::vector<int64_t>> random_nano_batches(int count, Random& random) {
  std::vector<std::vector<int64_t>> all;
  for (int i = 0; i < count; ++i) all.push_back(testing::random_lengths(random));
  return all;
}

std::string name_of(const PipelineRequest& request) {
  return fmt::format("{} stages, {} replicas, {} dedicated, {} slots, {} nano-batches, {}",
                     request.grid.stages, request.grid.replicas, request.grid.dedicated,
                     request.slots, request.nano_batches.size(), request.options.scheduler);
}

/// All numbers of stages and micro-batches; replicas, dedicated servers, slots and the rest in
/// turn.
TEST(PipelinePlan, of_every_grid_is_valid) {
  const char* const schedulers[] = {"balanced", "greedy", "local"};
  Random random(17, 0);
  int turn = 0;
  for (int stages = 1; stages <= 8; ++stages) {
    for (int micro_batches = 1; micro_batches <= 16; ++micro_batches, ++turn) {
      const Grid grid{.stages = stages, .replicas = 1 + turn % 3, .dedicated = turn / 3 % 3};
      const int slots = 1 + turn % 2;
      const int nano_batches = slots * micro_batches - (slots == 2 && turn % 4 == 1 ? 1 : 0);
      PipelineRequest request = pipeline_request(
          grid, slots, random_nano_batches(nano_batches, random), schedulers[turn / 2 % 3]);
      if (turn % 5 > 0) set_attention_share(request, 0.2 * (turn % 5));
      request.balance_target = kEvennesses[turn / 7 % 2];
      request.trains = turn % 6 > 0;
      const PipelinePlan plan = make_pipeline_plan(request);
      const int of_a_pass = micro_batches + stages - 1;
      EXPECT_EQ(std::ssize(plan.ticks), of_a_pass * (request.trains ? 2 : 1)) << name_of(request);
      const ValidateOptions checks = checks_of(find_scheduler(request.options.scheduler));
      EXPECT_THAT(validate(plan, checks), IsEmpty()) << name_of(request);
      if (turn % 8 > 0) continue;
      request.threads = 2 + turn % 3;
      EXPECT_TRUE(make_pipeline_plan(request) == plan) << name_of(request);
    }
  }
}

TEST(PipelinePlan, of_one_stage_has_the_plans_that_nano_batches_have_without_a_pipeline) {
  Random random(3, 1);
  for (const BalanceTarget balance_target : kEvennesses) {
    for (const int dedicated : {0, 2}) {
      PipelineRequest request = pipeline_request({.replicas = 3, .dedicated = dedicated}, 2,
                                                 random_nano_batches(5, random));
      set_attention_share(request, 0.4);
      request.balance_target = balance_target;
      const PipelinePlan plan = make_pipeline_plan(request);
      ASSERT_EQ(plan.plans.size(), 5u);
      for (size_t nano = 0; nano < 5; ++nano) {
        PlanRequest alone{.nano_batch = request.nano_batches[nano],
                          .cluster = request.cluster,
                          .shape = request.shape,
                          .options = request.options};
        int64_t load = 0;
        for (const Document& document : alone.nano_batch.documents)
          load += Mask{}.pairs({0, document.length}, {0, document.length});
        alone.cluster.num_workers = 3;
        alone.cluster.capacity =
            even_capacities(work_of_step({.ranks = request.speeds}, 3, 3 + dedicated,
                                         /*in_place=*/true, alone.nano_batch.num_tokens() / 3),
                            balance_target, load);
        EXPECT_EQ(plan_hash(plan.plans[nano]), plan_hash(make_plan(alone, request.homes[nano])));
      }
      EXPECT_THAT(plan.plan_of_slot,
                  ElementsAre(ElementsAre(0, 1), ElementsAre(0, 1), ElementsAre(2, 3),
                              ElementsAre(2, 3), ElementsAre(4, -1), ElementsAre(4, -1)));
    }
  }
}

TEST(PipelinePlan, of_the_default_layout_is_that_of_one_stage_alone) {
  const PlanRequest alone = testing::request_for({6000, 500, 1692, 3000, 77}, 3, "balanced");
  EXPECT_EQ(make_layout(alone), make_plan(alone).layout);
}

TEST(PipelinePlan, leaves_slots_empty_in_which_no_stage_has_a_nano_batch) {
  PipelineRequest request =
      pipeline_request({.stages = 2, .replicas = 1}, 2, {{700}, {600, 130}, {512}});
  const PipelinePlan plan = make_pipeline_plan(request);
  // F0: micro-batch 0 on stage 0; F1: 1 and 0; B0: 0 on stage 1; F2: 1 on stage 1; B1: 0 and 1; B2.
  std::vector<bool> second;
  for (const std::vector<int>& slots : plan.plan_of_slot) second.push_back(slots[1] >= 0);
  EXPECT_THAT(second, ElementsAre(true, true, true, false, true, false));
  EXPECT_EQ(plan.nano_batch(1, 0), 2);
  EXPECT_EQ(plan.nano_batch(1, 1), -1);
  EXPECT_EQ(plan.nano_batch(-1, 0), -1);
}

/// Working stages do linear work, so the others take more attention.
TEST(PipelinePlan, gives_idle_stages_more_attention_where_linear_work_counts) {
  Random random(5, 2);
  std::vector<std::vector<int64_t>> nano_batches;
  for (int i = 0; i < 4; ++i) nano_batches.push_back(testing::many_lengths(16'384, random));
  PipelineRequest request =
      pipeline_request({.stages = 2, .replicas = 2, .dedicated = 1}, 1, nano_batches);
  const auto fill = [&request] { return make_pipeline_plan(request).plans.front(); };  // F0
  for (const double share : {.25, .6}) {
    set_attention_share(request, share);
    request.balance_target = BalanceTarget::kWhole;
    const std::vector<int64_t> capacity = fill().cluster.capacity;
    EXPECT_EQ(capacity[0], capacity[1]);
    EXPECT_LT(capacity[0], capacity[2] / 2);
    EXPECT_EQ(capacity[2], capacity[3]);
    EXPECT_EQ(capacity[2], capacity[4]);
    request.balance_target = BalanceTarget::kAttention;
    EXPECT_THAT(fill().cluster.capacity, Each(1));
  }
}

/// Idle stages may be done early, so they need not be even: the tolerance is one of the length.
TEST(PipelinePlan, lets_fill_ticks_last_within_the_tolerance_and_no_less_even_than_that) {
  Random random(5, 4);
  PipelineRequest request =
      pipeline_request({.stages = 2, .replicas = 2}, 1, {testing::many_lengths(65'536, random)});
  request.options.tolerance_ppm = 30'000;
  request.balance_target = BalanceTarget::kWhole;
  for (const double share : {.1, .25, .5, .75}) {
    set_attention_share(request, share);
    const Plan plan = make_slot_plan(request, std::vector{0, -1}, Pass::kForward);
    const std::vector<RankWork> work = slot_work(request, std::vector{0, -1}, Pass::kForward);
    int64_t load = 0;
    double longest = 0;
    for (size_t rank = 0; rank < work.size(); ++rank) {
      load += plan.load[rank].pairs;
      longest = std::max(longest,
                         linear_ps(work[rank]) + attention_ps(work[rank], plan.load[rank].pairs));
    }
    EXPECT_LE(longest, 1.0301 * static_cast<double>(least_ps(work, BalanceTarget::kWhole, load)));
    EXPECT_GT(plan.options.tolerance_ppm, share < .4 ? 500'000 : 30'000);
  }
}

TEST(PipelinePlan, counts_the_ends_of_the_stages_that_have_them) {
  PipelineRequest request = pipeline_request({.stages = 2, .replicas = 1}, 1, {{4000}, {4000}});
  set_attention_share(request, 0.5);
  request.ends = {{.forward_ps_per_token = 10, .backward_ps_per_token = 20},
                  {.forward_ps_per_token = 400'000}};
  const std::vector<int> both{1, 0};
  EXPECT_EQ(slot_work(request, both, Pass::kForward)[1].ends_ps_per_token, 400'000);
  EXPECT_EQ(slot_work(request, both, Pass::kBackward)[1].ends_ps_per_token, 0);
  EXPECT_EQ(slot_work(request, both, std::nullopt)[0].ends_ps_per_token, 30);
  const std::vector<int64_t> capacity = make_pipeline_plan(request).plans[1].cluster.capacity;
  EXPECT_GT(capacity[0], capacity[1]);  // the tick in which both stages work
}

TEST(PipelinePlan, divides_times_between_the_passes) {
  PipelineRequest request = pipeline_request({.stages = 1, .replicas = 1}, 1, {{4000}});
  request.speeds = {{.linear_ps_per_token = 1'000'001, .attention_ps_per_kload = 700'003}};
  const std::vector<int> own{0};
  const auto work = [&](std::optional<Pass> pass) { return slot_work(request, own, pass)[0]; };
  EXPECT_EQ(work(Pass::kForward).layers_ps_per_token, 333'333);
  EXPECT_EQ(work(Pass::kBackward).layers_ps_per_token, 666'668);
  EXPECT_EQ(work(Pass::kForward).attention_ps_per_kload, 200'000);
  EXPECT_EQ(work(Pass::kBackward).attention_ps_per_kload, 500'003);
  EXPECT_EQ(work(std::nullopt).layers_ps_per_token, 1'000'001);
  EXPECT_EQ(work(std::nullopt).attention_ps_per_kload, 700'003);
  request.products = request.products_again = 300;
  EXPECT_EQ(work(Pass::kForward).layers_ps_per_token, 250'000);
  request.products_again = 100;
  EXPECT_EQ(work(Pass::kForward).layers_ps_per_token, 300'000);
}

TEST(PipelinePlan, sets_the_options_of_fill_ticks_alone) {
  PipelineRequest request =
      pipeline_request({.stages = 2, .replicas = 2}, 1, {{4000, 300}, {2000, 2222}, {4096}});
  for (const FillTicksName& way : kFillTicks) {
    request.fill_ticks = way.fill_ticks;
    const PipelinePlan plan = make_pipeline_plan(request);
    for (size_t tick = 0; tick < plan.ticks.size(); ++tick) {
      const PlanOptions& options = plan.plans[plan.plan_of_slot[tick][0]].options;
      const bool fills = plan.ticks[tick].num_working() < 2;
      EXPECT_EQ(options.spread, fills && way.fill_ticks == FillTicks::kSpread) << way.name;
    }
    EXPECT_THAT(validate(plan), IsEmpty()) << way.name;
  }
  request.options.scheduler = "greedy";  // greedy can do neither split_kv nor spread
  EXPECT_THAT(validate(make_pipeline_plan(request)), IsEmpty());
}

TEST(PipelinePlan, largest_sends_of_fill_ticks_are_bounded) {
  const Workload workload = read_workload("distca/plan/testdata/workloads/pretrain_8x128k_0.json");
  PipelineRequest request = pipeline_request({.stages = 2, .replicas = workload.ranks}, 1, {});
  request.nano_batches.assign(2, workload.nano_batch);
  request.homes.assign(2, make_layout({workload.nano_batch, Cluster::in_place(workload.ranks),
                                       request.shape, request.options}));
  const auto largest_send = [&](const std::vector<int>& nano_batches) {
    const Plan plan = make_slot_plan(request, nano_batches, Pass::kForward);
    EXPECT_THAT(validate(plan, {.even_tokens = false}), IsEmpty());
    return static_cast<double>(summarize(plan).max_send_bytes);
  };
  // Half of the attention travels, and keys once to each of its servers.
  EXPECT_LE(largest_send({0, -1}), 2.5 * largest_send({0, 1}));
  request.fill_ticks = FillTicks::kSpread;
  for (const double share : {0.0, 0.6}) {
    if (share > 0) set_attention_share(request, share);
    request.balance_target = share > 0 ? BalanceTarget::kWhole : BalanceTarget::kAttention;
    EXPECT_LE(largest_send({0, -1}), 1.2 * largest_send({0, 1})) << share;
  }
}

TEST(PipelinePlan, takes_given_capacities_and_caps) {
  PipelineRequest request =
      pipeline_request({.stages = 2, .replicas = 1, .dedicated = 1}, 1, {{4000, 300}, {2000}});
  request.capacity = {1, 0, 3};
  for (const Plan& plan : make_pipeline_plan(request).plans) {
    EXPECT_THAT(plan.cluster.capacity, ElementsAre(1, 0, 3));
    EXPECT_EQ(plan.load[1].pairs, 0);
  }
  request.cluster.max_send_bytes = 1;
  EXPECT_THROW(make_pipeline_plan(request), Error);
}

TEST(PipelinePlan, balances_times_with_a_profile) {
  Random random(7, 3);
  PipelineRequest request =
      pipeline_request({.stages = 3, .replicas = 2}, 2, random_nano_batches(6, random));
  request.profile = std::make_shared<const AttentionProfile>(testing::small_profile());
  const PipelinePlan plan = make_pipeline_plan(request);
  ValidateOptions options;
  options.profile = request.profile.get();
  EXPECT_THAT(validate(plan, options), IsEmpty());
}

/// The hash of all plans and of the ticks that use them.
std::string pipeline_hash(const PipelinePlan& plan) {
  std::string text;
  for (const Plan& one : plan.plans) text += plan_hash(one) + "\n";
  for (size_t tick = 0; tick < plan.ticks.size(); ++tick) {
    for (const TickStage& stage : plan.ticks[tick].stages)
      text += fmt::format("{}{} ", stage.pass == Pass::kForward ? 'F' : 'B', stage.micro_batch);
    text += fmt::format("{}\n", fmt::join(plan.plan_of_slot[tick], " "));
  }
  return hash_hex(text);
}

/// Plans have the same bits with every compiler.
TEST(PipelinePlan, has_a_pinned_hash) {
  Random random(31, 0);
  std::vector<std::vector<int64_t>> nano_batches;
  for (int i = 0; i < 5; ++i) nano_batches.push_back(testing::many_lengths(16'384, random));
  PipelineRequest request =
      pipeline_request({.stages = 3, .replicas = 2, .dedicated = 1}, 2, nano_batches);
  set_attention_share(request, 0.35);
  std::string hashes;
  for (const FillTicksName& way : kFillTicks) {
    request.fill_ticks = way.fill_ticks;
    hashes += pipeline_hash(make_pipeline_plan(request)) + " ";
  }
  EXPECT_EQ(hashes, "63a3ca1ff973ad22 824a5d3da9db7d6b ");
}

}  // namespace
}  // namespace distca
