#include "distca/forecast/plan_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "distca/base/error.h"

namespace distca {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const NanoBatch kDocuments = NanoBatch::from_lengths({3000, 700, 129, 267});

Batch batch_of(const std::vector<NanoBatch>& nano_batches) {
  Batch batch;
  for (const NanoBatch& one : nano_batches) batch.push_back({.nano_batch = one, .sources = {}});
  return batch;
}

PlanRequest request(const std::vector<std::string>& overrides, int num_workers = 2) {
  return plan_request(load_config("", overrides), kDocuments, num_workers);
}

TEST(PlanRequest, workers_alone_serve_evenly_under_every_schedule) {
  for (const char* overlap : {"none", "within", "ping-pong"}) {
    const PlanRequest asked =
        request({fmt::format("train.overlap={}", overlap), "batch.nano_batches=2"}, 3);
    EXPECT_EQ(asked.cluster.num_workers, 3);
    EXPECT_THAT(asked.cluster.capacity, ElementsAre(1, 1, 1)) << overlap;
  }
}

TEST(PlanRequest, the_plan_is_asked_for_what_the_keys_say) {
  const PlanRequest defaults = request({});
  EXPECT_EQ(defaults.options.layout, "") << "the scheduler's own";
  EXPECT_EQ(defaults.options.tolerance_ppm, std::nullopt);
  EXPECT_EQ(request({"plan.tolerance=0"}).options.tolerance_ppm, 0);
  EXPECT_EQ(request({"plan.tolerance=0.035"}).options.tolerance_ppm, 35'000);
  EXPECT_EQ(defaults.shape.mask.window_left, -1);
  EXPECT_FALSE(defaults.options.split_kv || defaults.options.spread);
  EXPECT_EQ(defaults.profile, nullptr);
  const PlanRequest asked =
      request({"plan.layout=sequential", "plan.split_kv=true", "plan.spread=true",
               "plan.profile=h200", "model.sliding_window=200"});
  EXPECT_EQ(asked.options.layout, "sequential");
  EXPECT_EQ(asked.shape.mask.window_left, 199);
  EXPECT_TRUE(asked.options.split_kv && asked.options.spread);
  ASSERT_NE(asked.profile, nullptr);
  EXPECT_EQ(*asked.profile, h200_profile());
}

TEST(PlanRequest, servers_get_the_capacities_that_are_given) {
  const PlanRequest asked = request({"servers.dedicated=1", "servers.capacity=60,40,100"});
  EXPECT_EQ(asked.cluster.num_workers, 2);
  EXPECT_THAT(asked.cluster.capacity, ElementsAre(60, 40, 100));
}

TEST(PlanRequest, workers_that_do_not_serve_get_none) {
  EXPECT_THAT(request({"servers.dedicated=2", "servers.in_place=false"}).cluster.capacity,
              ElementsAre(0, 0, 1, 1));
}

TEST(PlanRequest, a_dedicated_server_gets_more_only_where_workers_do_linear_work_meanwhile) {
  const std::vector<std::string> pool = {"servers.dedicated=1", "batch.nano_batches=2",
                                         "model.hidden_size=64", "model.intermediate_size=64",
                                         "model.vocab_size=32"};
  const auto with = [&](const char* overlap) {
    std::vector<std::string> more = pool;
    more.push_back(fmt::format("train.overlap={}", overlap));
    return request(more).cluster.capacity;
  };
  EXPECT_THAT(with("none"), ElementsAre(1, 1, 1));
  EXPECT_THAT(with("within"), ElementsAre(1, 1, 1));
  const std::vector<int64_t> ping_pong = with("ping-pong");
  EXPECT_EQ(ping_pong[0], ping_pong[1]);
  EXPECT_GT(ping_pong[0], 0);
  EXPECT_GT(ping_pong[2], ping_pong[0]);
}

TEST(PlanRequest, layers_with_other_windows_have_plans_of_their_own_on_the_same_layout) {
  const std::vector<std::string> three = {"model.num_hidden_layers=3"};
  const Batch batch = batch_of({kDocuments, NanoBatch::from_lengths({2048, 2048})});
  const BatchPlans full = plan_nano_batches(load_config("", three), batch, 2);
  EXPECT_EQ(full.num_windows, 1u);
  std::vector<std::string> words = three;
  words.insert(words.end(),
               {"model.sliding_window=200",
                "model.layer_types=sliding_attention,full_attention,sliding_attention"});
  const BatchPlans both = plan_nano_batches(load_config("", words), batch, 2);
  EXPECT_EQ(both.num_windows, 2u);
  ASSERT_EQ(both.num_nano_batches(), 2u);
  const auto pairs = [](const Plan& plan) { return plan.load[0].pairs + plan.load[1].pairs; };
  for (size_t nano = 0; nano < 2; ++nano) {
    const Plan &wide = both.plan(nano, 0), &narrow = both.plan(nano, 1);
    EXPECT_EQ(wide.tasks, full.plan(nano).tasks);
    EXPECT_EQ(wide.layout, full.plan(nano).layout);
    EXPECT_EQ(narrow.layout, wide.layout);
    EXPECT_EQ(narrow.nano_batch, wide.nano_batch);
    EXPECT_EQ(wide.shape.mask.window_left, -1);
    EXPECT_EQ(narrow.shape.mask.window_left, 199);
    EXPECT_LT(pairs(narrow), pairs(wide) / 4);
    // One layer has the wide one, two have the narrow one.
    EXPECT_EQ(3 * wide.cluster.memory.kept_key_bytes,
              full.plan(nano).cluster.memory.kept_key_bytes);
    EXPECT_EQ(narrow.cluster.memory.kept_key_bytes, 2 * wide.cluster.memory.kept_key_bytes);
  }
}

TEST(PlanRequest, measured_speeds_take_the_place_of_stated_ones) {
  Speeds speeds;
  speeds.ranks = {{.linear_ps_per_token = 1, .attention_ps_per_kload = 1000},
                  {.linear_ps_per_token = 1, .attention_ps_per_kload = 3000}};
  const Config reweighted = load_config("", {"servers.reweight=true", "train.deterministic=false"});
  const PlanRequest asked = plan_request(reweighted, kDocuments, 2, speeds);
  // Whole numbers in the ratio 3 to 1, to within half of one.
  EXPECT_NEAR(static_cast<double>(asked.cluster.capacity[0]),
              3.0 * static_cast<double>(asked.cluster.capacity[1]), 1.5);
  // Only where that is asked for.
  EXPECT_THAT(plan_request(load_config("", {}), kDocuments, 2, speeds).cluster.capacity,
              ElementsAre(1, 1));
}

TEST(LayerTimeOptions, take_the_given_bandwidth_then_the_measured_one) {
  Speeds measured;
  measured.bytes_per_us = 700;
  const auto bandwidth = [&](const char* given) {
    const Config config = load_config("", {fmt::format("plan.bandwidth_mb_per_s={}", given)});
    return layer_time_options(config, 2, measured, false).speeds.bytes_per_us;
  };
  EXPECT_EQ(bandwidth("0"), 700);
  EXPECT_EQ(bandwidth("25"), 25);
}

TEST(LayerTimeOptions, follow_the_schedule) {
  const auto overlap_model = [](const char* overlap, const char* nano_batches) {
    return layer_time_options(load_config("", {fmt::format("train.overlap={}", overlap),
                                               fmt::format("batch.nano_batches={}", nano_batches)}),
                              2, {}, false)
        .overlap_model;
  };
  EXPECT_EQ(overlap_model("none", "2"), OverlapModel::kNothing);
  EXPECT_EQ(overlap_model("within", "2"), OverlapModel::kHomeTasks);
  EXPECT_EQ(overlap_model("ping-pong", "2"), OverlapModel::kOtherNanoBatch);
  EXPECT_EQ(overlap_model("ping-pong", "1"), OverlapModel::kHomeTasks);  // no other one
}

TEST(BatchPlans, with_an_automatic_tolerance_follows_the_bandwidth) {
  const auto planned = [](const char* bandwidth) {
    const Config config = load_config(
        "", {"plan.tolerance=auto", fmt::format("plan.bandwidth_mb_per_s={}", bandwidth),
             "train.overlap=none"});
    // Packed, one worker has a long document and the other short ones: nothing needs to travel.
    std::vector<int64_t> lengths(33, 1024);
    lengths[0] = 32 * 1024;
    return plan_nano_batches(config, batch_of({NanoBatch::from_lengths(lengths)}), 2).plans[0];
  };
  const Plan still = planned("1"), even = planned("1000000000");
  EXPECT_EQ(still.options.scheduler, "local");
  EXPECT_EQ(even.options.scheduler, "balanced");
  EXPECT_GT(max_over_mean(still), 1.5);
  EXPECT_LT(max_over_mean(even), 1.1);
}

/// Plans nano-batches for three workers with a memory cap of `bytes`. 0 means no cap.
BatchPlans plan_within(int64_t bytes, const char* keys,
                       const std::vector<NanoBatch>& nano_batches = {kDocuments}) {
  return plan_nano_batches(
      load_config(
          "", {fmt::format("exchange.keys={}", keys), "plan.tolerance=0", "train.overlap=within",
               fmt::format("plan.max_memory_gib={:.17g}", bytes / 0x1p30)}),
      batch_of(nano_batches), 3);
}

/// Bytes on the fullest rank, where nano-batches share buffers: the most activations of any of them
/// and the most kept keys of any.
int64_t most_memory(const BatchPlans& planned) {
  int64_t most = 0;
  for (int rank = 0; rank < 3; ++rank) {
    int64_t activations = 0, kept = 0;
    for (const Plan& plan : planned.plans) {
      const int64_t home = plan.layout.num_tokens(rank) * plan.cluster.memory.token_bytes;
      activations = std::max(activations, home);
      kept = std::max(kept, plan.load[rank].memory_bytes - home);
    }
    most = std::max(most, activations + kept);
  }
  return most;
}

TEST(BatchPlans, keys_are_kept_where_they_fit_and_else_redispatched) {
  const int64_t kept = most_memory(plan_within(0, "keep"));
  const int64_t redispatched = most_memory(plan_within(0, "redispatch"));
  ASSERT_LT(redispatched, kept);
  EXPECT_FALSE(plan_within(kept, "auto").redispatched);
  const BatchPlans planned = plan_within(kept - 1, "auto");
  EXPECT_TRUE(planned.redispatched);
  EXPECT_EQ(planned.plans[0].cluster.memory.kept_key_bytes, 0);
  EXPECT_EQ(planned.plans[0].cluster.memory.kept_query_bytes, 0);
  EXPECT_TRUE(plan_within(redispatched, "redispatch").redispatched);
  EXPECT_FALSE(plan_within(kept, "keep").redispatched);
}

/// One of few tokens, a long document and short ones, whose tasks move only for even load; one of
/// more tokens that stay.
const std::vector<NanoBatch> kUnlike = [] {
  std::vector<int64_t> lengths(23, 128);
  lengths[0] = 11 * 128;
  return std::vector<NanoBatch>{NanoBatch::from_lengths(lengths),
                                NanoBatch::from_lengths(std::vector<int64_t>(12, 512))};
}();

TEST(BatchPlans, keys_of_one_nano_batch_are_kept_beside_the_activations_of_another) {
  const int64_t together = most_memory(plan_within(0, "keep", kUnlike));
  int64_t alone = 0;
  for (const NanoBatch& one : kUnlike) {
    alone = std::max(alone, most_memory(plan_within(0, "keep", {one})));
  }
  ASSERT_LT(alone, together);
  EXPECT_FALSE(plan_within(together, "auto", kUnlike).redispatched);
  for (const NanoBatch& one : kUnlike) EXPECT_FALSE(plan_within(alone, "auto", {one}).redispatched);
  const BatchPlans planned = plan_within(together - 1, "auto", kUnlike);
  EXPECT_TRUE(planned.redispatched);
  for (const Plan& plan : planned.plans) EXPECT_EQ(plan.cluster.memory.kept_key_bytes, 0);
  EXPECT_LE(most_memory(planned), alone);
}

TEST(BatchPlans, keys_that_are_to_be_kept_leave_room_for_the_activations_of_another) {
  const int64_t together = most_memory(plan_within(0, "keep", kUnlike));
  const int64_t least = most_memory(plan_within(0, "redispatch", kUnlike));
  const int64_t cap = together - (together - least) / 4;
  const BatchPlans planned = plan_within(cap, "keep", kUnlike);
  EXPECT_FALSE(planned.redispatched);
  EXPECT_GT(planned.plans[0].cluster.memory.kept_key_bytes, 0);
  EXPECT_LE(most_memory(planned), cap);
}

TEST(BatchPlans, what_does_not_fit_even_so_is_refused_with_the_numbers) {
  const auto refusal = [](int64_t bytes, const char* keys) -> std::string {
    try {
      plan_within(bytes, keys);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2);
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(refusal(1000, "auto"),
              AllOf(HasSubstr("plan.max_memory_gib = "), HasSubstr("exchange.keys = redispatch"),
                    ContainsRegex("a rank would hold [0-9.e-]+ GiB of activations; use more")));
  EXPECT_THAT(refusal(1000, "keep"),
              AllOf(HasSubstr("exchange.keys = keep"), HasSubstr("activations and kept keys")));
}

/// A batch whose weight gradients could wait, and find no room, is planned with fewer that do.
TEST(BatchPlans, weight_gradients_wait_only_where_memory_has_room) {
  const auto planned = [](double gib) {
    return plan_nano_batches(
        load_config("", {"parallel.pipeline_model_parallel_size=2", "model.num_hidden_layers=4",
                         "train.overlap=ping-pong", "batch.nano_batches=8",
                         "parallel.outstanding_weight_gradients=2",
                         fmt::format("plan.max_memory_gib={:.17g}", gib)}),
        batch_of(std::vector<NanoBatch>(8, kDocuments)), 2);
  };
  const auto waiting = [](const BatchPlans& plans) {
    return most_outstanding(plans.pipeline->weight_gradients(), /*stage=*/0);
  };
  double least = 0;  // GiB of activations alone
  try {
    planned(1e-9);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    const std::string line = error.what();
    constexpr std::string_view kBefore = "a rank of stage 0 would hold ";
    const size_t at = line.find(kBefore);
    ASSERT_NE(at, std::string::npos) << line;
    least = std::stod(line.substr(at + kBefore.size()));
  }
  EXPECT_EQ(waiting(planned(0)), 2);
  EXPECT_EQ(waiting(planned(1.01 * least)), 0);
  EXPECT_EQ(waiting(planned(100 * least)), 2);
}

TEST(PlanRequest, two_nano_batches_at_a_time_share_the_memory) {
  const auto cap = [](const char* overlap, const char* nano_batches) {
    return request({"plan.max_memory_gib=1", fmt::format("train.overlap={}", overlap),
                    fmt::format("batch.nano_batches={}", nano_batches)})
        .cluster.max_memory_bytes;
  };
  EXPECT_EQ(cap("ping-pong", "4"), int64_t{1} << 29);
  EXPECT_EQ(cap("ping-pong", "1"), int64_t{1} << 30);
  EXPECT_EQ(cap("within", "4"), int64_t{1} << 30);
}

}  // namespace
}  // namespace distca
