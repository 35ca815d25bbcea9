#include "distca/plan/layer_time.h"

#include <gtest/gtest.h>

#include "distca/plan/plan_testing.h"

namespace distca {
namespace {

constexpr int64_t kLatencyNs = 20'000;
constexpr int64_t kBytesPerUs = 100;
constexpr RankSpeed kSpeed{.linear_ps_per_token = 3'000'000, .attention_ps_per_kload = 1'400'000};

LayerTimeOptions overlap_options(OverlapModel overlap_model, int servers) {
  LayerTimeOptions options{.speeds = {}, .overlap_model = overlap_model};
  options.speeds.ranks.assign(servers, kSpeed);
  options.speeds.bytes_per_us = kBytesPerUs;
  return options;
}

int64_t wire_ps(int64_t bytes) { return (kLatencyNs + bytes * 1000 / kBytesPerUs) * 1000; }

Plan plan_at_home(const std::vector<int64_t>& lengths, int workers) {
  return make_plan(testing::request_for(lengths, workers, "local"));
}

/// Laid end to end, half of the tokens each.
Plan packed_plan(const std::vector<int64_t>& lengths) {
  const PlanRequest request = testing::request_for(lengths, 2, "local");
  const int64_t half = request.nano_batch.num_tokens() / 2;
  Layout layout;
  layout.workers.resize(2);
  int64_t before = 0;
  for (const Document& document : request.nano_batch.documents) {
    const int64_t cut = std::clamp<int64_t>(half - before, 0, document.length);
    if (cut > 0) layout.workers[0].push_back({document.id, {0, cut}});
    if (cut < document.length) layout.workers[1].push_back({document.id, {cut, document.length}});
    before += document.length;
  }
  return make_plan(request, layout);
}

TEST(LayerTime, of_what_stays_at_home_is_the_longest_rank) {
  const Plan plan = plan_at_home({1024, 512, 512}, 2);
  for (const OverlapModel overlap_model :
       {OverlapModel::kNothing, OverlapModel::kHomeTasks, OverlapModel::kOtherNanoBatch}) {
    LayerTimeOptions options = overlap_options(overlap_model, 2);
    const int64_t pairs = 1024 * 1025 / 2;
    const int64_t expected = int64_t{1024} * 3'000'000 + pairs * 1'400;
    LayerTime time = layer_time(plan, nullptr, options);
    EXPECT_EQ(time.total_ps, expected);
    EXPECT_EQ(time.exposed_ps, 0);
    EXPECT_EQ(time.bytes, 0);
    options.layers = 4;  // the speeds are of four layers
    EXPECT_EQ(layer_time(plan, nullptr, options).total_ps, expected / 4);
    options.layers = 1;
    // The rank with less attention is twice as slow: it is the longest.
    options.speeds.ranks[1] = {6'000'000, 2'800'000};
    EXPECT_EQ(layer_time(plan, nullptr, options).total_ps,
              int64_t{1024} * 6'000'000 + int64_t{512} * 513 * 2'800);
  }
}

/// One document over two workers: rank 1 reads the keys of rank 0's half.
TEST(LayerTime, of_a_cut_document_counted_by_hand) {
  const Plan plan = packed_plan({2048});
  const int64_t bytes = 1024 * plan.shape.kv_token_bytes();  // K, V there; dK, dV back
  const int64_t linear = int64_t{1024} * 3'000'000;
  const int64_t first = int64_t{1024} * 1025 / 2 * 1'400;
  const int64_t second = (int64_t{2048} * 2049 / 2 - 1024 * 1025 / 2) * 1'400;
  const int64_t forward = second * 2 / 7;

  const LayerTime blocking = layer_time(plan, nullptr, overlap_options(OverlapModel::kNothing, 2));
  EXPECT_EQ(blocking.bytes, 2 * bytes);
  EXPECT_EQ(blocking.exposed_ps, 2 * wire_ps(bytes));
  EXPECT_EQ(blocking.total_ps, linear + second + 2 * wire_ps(bytes));

  // Rank 1 has no task of its own alone; rank 0 has, but its exchanges are no shorter.
  const LayerTime overlap = layer_time(plan, nullptr, overlap_options(OverlapModel::kHomeTasks, 2));
  EXPECT_EQ(overlap.total_ps, blocking.total_ps);

  LayerTimeOptions options = overlap_options(OverlapModel::kOtherNanoBatch, 2);
  ASSERT_GT(wire_ps(bytes), linear) << "the exchange is longer than anything beside it";
  const LayerTime slow_wire = layer_time(plan, nullptr, options);
  const int64_t exposed = (2 * wire_ps(bytes) - linear / 3 - forward) / 2 +
                          (2 * wire_ps(bytes) - (linear - linear / 3) - (second - forward)) / 2;
  EXPECT_EQ(slow_wire.exposed_ps, exposed);
  EXPECT_EQ(slow_wire.total_ps, linear + second + exposed);

  options.speeds.bytes_per_us = 1'000'000;
  const LayerTime fast_wire = layer_time(plan, nullptr, options);
  EXPECT_EQ(fast_wire.exposed_ps, 0);
  EXPECT_EQ(fast_wire.total_ps, linear + second);
  EXPECT_LT(linear + first, fast_wire.total_ps);
}

TEST(LayerTime, hides_exchanges_under_tasks_at_home) {
  // Rank 1 has documents of its own in addition to the half that it needs keys for.
  const Plan plan = packed_plan({1536, 512});
  const int64_t bytes = 1024 * plan.shape.kv_token_bytes();
  const int64_t home = int64_t{512} * 513 / 2 * 1'400;
  const LayerTime blocking = layer_time(plan, nullptr, overlap_options(OverlapModel::kNothing, 2));
  const LayerTime overlap = layer_time(plan, nullptr, overlap_options(OverlapModel::kHomeTasks, 2));
  ASSERT_EQ(blocking.exposed_ps, 2 * wire_ps(bytes));
  // Rank 0 sends and receives as long as rank 1, under all of its tasks.
  const int64_t first = int64_t{1024} * 1025 / 2 * 1'400;
  ASSERT_LT(home, first);
  EXPECT_EQ(overlap.exposed_ps,
            2 * wire_ps(bytes) - (home * 2 / 7) / 2 - (home - home * 2 / 7) / 2);
}

TEST(LayerTime, counts_what_backward_sends_again_and_wider) {
  const Plan plan = packed_plan({2048});
  const int64_t keys = 1024 * plan.shape.kv_token_bytes();
  LayerTimeOptions options = overlap_options(OverlapModel::kNothing, 2);
  options.redispatched = true;
  EXPECT_EQ(layer_time(plan, nullptr, options).bytes, 3 * keys);
  options.wide_gradients = true;  // bf16 -> fp32
  EXPECT_EQ(layer_time(plan, nullptr, options).bytes, 4 * keys);
}

TEST(LayerTime, counts_rows_that_travel_with_their_statistics) {
  PlanRequest request = testing::request_for({2048}, 1, "greedy");
  request.cluster.capacity = {0, 1};
  const Plan plan = make_plan(request);
  const AttentionShape& shape = plan.shape;
  const int64_t qkv = 2048 * (shape.q_token_bytes() + shape.kv_token_bytes());
  const int64_t o = 2048 * (shape.o_token_bytes() + shape.num_heads * 4);
  const int64_t d_o = o + 2048 * shape.num_heads * 4;
  const LayerTime time = layer_time(plan, nullptr, overlap_options(OverlapModel::kNothing, 2));
  EXPECT_EQ(time.bytes, 2 * qkv + o + d_o);
  EXPECT_EQ(time.exposed_ps, 2 * wire_ps(qkv) + wire_ps(o) + wire_ps(d_o));
}

TEST(LayerTime, is_never_below_the_least) {
  Random random(5);
  for (int round = 0; round < 200; ++round) {
    const int workers = 1 + static_cast<int>(random.below(5));
    PlanRequest request =
        testing::request_for(testing::random_lengths(random), workers, "balanced", 0);
    LayerTimeOptions options = overlap_options(
        random.below(2) == 0 ? OverlapModel::kOtherNanoBatch : OverlapModel::kHomeTasks, workers);
    for (RankSpeed& speed : options.speeds.ranks) {
      speed.attention_ps_per_kload += static_cast<int64_t>(random.below(2'000'000));
    }
    const Plan plan = make_plan(request);
    int64_t load = 0;
    for (const ServerLoad& server : plan.load) load += server.pairs;
    // Within a block of tokens.
    EXPECT_GE(layer_time(plan, nullptr, options).total_ps + 128 * kSpeed.linear_ps_per_token,
              least_layer_ps(request.cluster, request.nano_batch.num_tokens(), load, options));
  }
}

}  // namespace
}  // namespace distca
