#include "distca/plan/choose_tolerance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "distca/base/error.h"
#include "distca/plan/plan_testing.h"
#include "distca/plan/scheduler.h"
#include "distca/plan/validate.h"

namespace distca {
namespace {

using ::testing::IsEmpty;

constexpr int64_t kInfinite = 1'000'000'000;  // bytes a microsecond

/// Llama-8B on one of 8 tensor-parallel ranks, at the stated speed.
LayerTimeOptions options_for(const PlanRequest& request, OverlapModel overlap_model,
                             int64_t bytes_per_us) {
  const ModelShape layers{.num_layers = 32,
                          .hidden_size = 4096,
                          .intermediate_size = 14'336 / 8,
                          .attention = request.shape};
  LayerTimeOptions options{
      .speeds = assumed_speeds(layers, request.cluster.num_servers(), request.profile.get()),
      .overlap_model = overlap_model,
      .layers = layers.num_layers};
  options.speeds.bytes_per_us = bytes_per_us;
  return options;
}

ToleranceChoice choose(const PlanRequest& request, OverlapModel overlap_model,
                       int64_t bytes_per_us) {
  return choose_tolerance(request, options_for(request, overlap_model, bytes_per_us));
}

const WeighedPlan& chosen(const ToleranceChoice& choice) { return choice.weighed[choice.chosen]; }

PlanRequest balanced_request(const std::vector<int64_t>& lengths, int workers) {
  return testing::request_for(lengths, workers, "balanced", std::nullopt);
}

/// One long document, as many tokens of short ones: packed, nothing is cut.
PlanRequest long_and_short() {
  std::vector<int64_t> lengths(33, 4096);
  lengths[0] = 32 * 4096;
  return balanced_request(lengths, 2);
}

constexpr OverlapModel kOverlapModels[] = {OverlapModel::kNothing, OverlapModel::kHomeTasks,
                                           OverlapModel::kOtherNanoBatch};

TEST(ChooseTolerance, with_infinite_bandwidth_is_as_even_as_helps) {
  for (const char* name : {"pretrain_8x128k_0", "pretrain_64x128k_1"}) {
    PlanRequest request = testing::workload_request(name);
    request.options = {};
    request.cluster.between.latency_ns = request.cluster.inside.latency_ns = 0;
    for (const OverlapModel overlap_model : kOverlapModels) {
      const ToleranceChoice choice = choose(request, overlap_model, kInfinite);
      int64_t fastest = chosen(choice).time.total_ps;
      for (const WeighedPlan& plan : choice.weighed) {
        fastest = std::min(fastest, plan.time.total_ps);
      }
      // Attention is most of these layers: what is left uneven would show.
      EXPECT_LT(chosen(choice).max_over_share, 1.02);
      EXPECT_LE(chosen(choice).time.total_ps, fastest + fastest * kTiePermille / 1000);
      EXPECT_LT(chosen(choice).time.exposed_ps, fastest / 100);
    }
  }
}

TEST(ChooseTolerance, with_hardly_any_bandwidth_does_nothing) {
  const PlanRequest request = long_and_short();
  for (const OverlapModel overlap_model : kOverlapModels) {
    const ToleranceChoice wide = choose(request, overlap_model, kInfinite);
    EXPECT_EQ(wide.plan.options.scheduler, "balanced");
    EXPECT_GT(chosen(wide).time.bytes, 0);
    const ToleranceChoice narrow = choose(request, overlap_model, 1);
    EXPECT_EQ(narrow.plan.options.scheduler, "local");
    EXPECT_EQ(chosen(narrow).time.bytes, 0);
    EXPECT_EQ(chosen(narrow).time.exposed_ps, 0);
  }
}

TEST(ChooseTolerance, moves_no_fewer_bytes_over_a_wider_wire) {
  for (const OverlapModel overlap_model : kOverlapModels) {
    for (PlanRequest request : {long_and_short(), testing::workload_request("pretrain_8x128k_0")}) {
      request.options = {};
      int64_t before = 0;
      std::vector<int64_t> amounts;
      for (int64_t bytes_per_us = 1; bytes_per_us <= kInfinite; bytes_per_us *= 10) {
        const int64_t bytes = chosen(choose(request, overlap_model, bytes_per_us)).time.bytes;
        EXPECT_GE(bytes, before) << bytes_per_us << " bytes per us";
        if (bytes != before || amounts.empty()) amounts.push_back(bytes);
        before = bytes;
      }
      EXPECT_GE(amounts.size(), 2u) << "one plan for every wire";
    }
  }
}

TEST(ChooseTolerance, of_equal_documents_moves_nothing) {
  for (const OverlapModel overlap_model : kOverlapModels) {
    const ToleranceChoice choice =
        choose(balanced_request(std::vector<int64_t>(12, 5000), 4), overlap_model, kInfinite);
    EXPECT_EQ(chosen(choice).time.bytes, 0);
    EXPECT_EQ(chosen(choice).time.exposed_ps, 0);
  }
}

TEST(ChooseTolerance, is_the_same_on_every_rank) {
  PlanRequest request = testing::workload_request("pretrain_8x128k_0");
  request.options = {};
  std::vector<std::string> hashes(4);
  std::vector<std::thread> ranks;
  for (std::string& hash : hashes) {
    ranks.emplace_back([&hash, &request] {
      hash = plan_hash(choose(request, OverlapModel::kOtherNanoBatch, 2000).plan);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_THAT(hashes, ::testing::Each(hashes.front()));
}

TEST(ChooseTolerance, with_capacities_of_uneven_ranks_is_as_fast_as_can_be) {
  PlanRequest request = long_and_short();
  LayerTimeOptions options = options_for(request, OverlapModel::kOtherNanoBatch, kInfinite);
  options.speeds.ranks[1].attention_ps_per_kload *= 3;
  options.speeds.ranks[1].linear_ps_per_token *= 3;
  const LayerTime alike = layer_time(make_plan(request), nullptr, options);
  int64_t load = 0;
  for (const ServerLoad& server : make_plan(request).load) load += server.pairs;
  const int64_t tokens = request.nano_batch.num_tokens();
  request.cluster.capacity = even_capacities(work_of_step(options.speeds, 2, 2, true, tokens / 2),
                                             BalanceTarget::kWhole, load);
  const LayerTime time = chosen(choose_tolerance(request, options)).time;
  const auto least = static_cast<double>(least_layer_ps(request.cluster, tokens, load, options));
  EXPECT_LT(static_cast<double>(time.total_ps), 1.02 * least);
  EXPECT_GT(static_cast<double>(alike.total_ps), 1.4 * least);
}

TEST(ChooseTolerance, makes_workers_that_do_not_serve_send_everything) {
  PlanRequest request = balanced_request({40'000, 30'000, 1000, 1000}, 2);
  request.cluster.capacity = {0, 0, 1, 1};
  const ToleranceChoice choice = choose(request, OverlapModel::kOtherNanoBatch, 1);
  EXPECT_EQ(choice.plan.options.scheduler, "balanced");
  EXPECT_EQ(choice.plan.load[0].pairs + choice.plan.load[1].pairs, 0);
}

TEST(ChooseTolerance, gives_valid_plans_of_every_scheduler) {
  for (const SchedulerEntry& scheduler : schedulers()) {
    Random random(9);
    for (int round = 0; round < 20; ++round) {
      PlanRequest request =
          testing::request_for(testing::random_lengths(random),
                               1 + static_cast<int>(random.below(6)), std::string(scheduler.name));
      if (round % 3 == 0) {
        request.profile = std::make_shared<const AttentionProfile>(testing::small_profile());
      }
      const auto overlap_model = kOverlapModels[random.below(std::size(kOverlapModels))];
      const ToleranceChoice choice =
          choose(request, overlap_model, 1 + static_cast<int64_t>(random.below(100'000)));
      ValidateOptions checks = checks_of(find_scheduler(choice.plan.options.scheduler));
      checks.profile = request.profile.get();
      EXPECT_THAT(validate(choice.plan, checks), IsEmpty()) << scheduler.name << ' ' << round;
      EXPECT_EQ(choice.plan.options, chosen(choice).options);
    }
  }
}

TEST(ChooseTolerance, says_what_no_plan_can_meet) {
  PlanRequest request = balanced_request({40'000, 30'000}, 2);
  request.cluster.max_tokens_per_worker = 1000;
  EXPECT_THROW(choose(request, OverlapModel::kNothing, 1), Error);
}

}  // namespace
}  // namespace distca
