#include "distca/plan/balanced/assignment.h"

#include <gtest/gtest.h>

#include "distca/plan/plan_testing.h"

namespace distca {
namespace {

/// A request and a layout at random: links, memory and windows priced.
struct AssignmentCase {
  PlanRequest request;
  Layout layout;
};

AssignmentCase random_case(Random& random) {
  const Plan plan = testing::random_plan(1 + static_cast<int>(random.below(5)),
                                         static_cast<int>(random.below(3)), random);
  PlanRequest request{
      .nano_batch = plan.nano_batch, .cluster = plan.cluster, .shape = plan.shape, .options = {}};
  request.cluster.memory = {.token_bytes = 100, .kept_query_bytes = 7, .kept_key_bytes = 3};
  if (random.below(2) == 0)
    request.shape.mask.window_left = static_cast<int64_t>(random.below(900));
  if (random.below(2) == 0) {
    request.cluster.ranks_per_node = 2;
    request.cluster.inside.bytes_per_us = 500'000;
  }
  return {std::move(request), plan.layout};
}

/// A part of a shard's rows, cut at blocks.
Range random_part(const Range& q, Random& random) {
  const auto cuts = testing::random_cuts(q, 3, random);
  return cuts[random.below(cuts.size())];
}

/// Moves a random part of the rows, or of the keys, of a random shard.
void random_change(Assignment& state, Random& random) {
  const auto from = static_cast<int>(random.below(state.num_servers()));
  const auto to = static_cast<int>(random.below(state.num_servers()));
  if (from == to || state.shards(from).empty()) return;
  const size_t index = random.below(state.shards(from).size());
  const Shard shard = state.shards(from)[index];
  std::vector<Shard> remainder;
  Shard moved = shard;
  if (random.below(3) == 0) {
    const Range keys = random_part(shard.kv, random);
    for (const Range& kv : {Range{shard.kv.begin, keys.begin}, Range{keys.end, shard.kv.end}}) {
      if (!kv.empty())
        remainder.push_back(state.with_keys(shard.document, shard.q, kv, shard.home));
    }
    moved = state.with_keys(shard.document, shard.q, keys, shard.home);
  } else {
    const Range rows = random_part(shard.q, random);
    for (const Range& q : {Range{shard.q.begin, rows.begin}, Range{rows.end, shard.q.end}}) {
      if (!q.empty()) remainder.push_back(state.with_keys(shard.document, q, shard.kv, shard.home));
    }
    moved = state.with_keys(shard.document, rows, shard.kv, shard.home);
  }
  const int64_t price = state.price();
  const int64_t saved = state.to_shrink(from, index, remainder).price;
  state.shrink(from, index, remainder);
  EXPECT_EQ(state.price(), price - saved);
  const MoveCost cost = state.to_add(to, moved);
  const int64_t received = state.receive_bytes(to);
  const int64_t memory = state.memory_bytes(to);
  state.add(to, moved);
  EXPECT_EQ(state.price(), price - saved + cost.price);
  EXPECT_EQ(state.receive_bytes(to), received + cost.received);
  EXPECT_EQ(state.memory_bytes(to), memory + cost.kept);
}

TEST(Assignment, without_leaves_the_other_pairs_of_a_shard) {
  Random random(5);
  int parts = 0;
  for (int trial = 0; trial < 5000; ++trial) {
    const AssignmentCase example = random_case(random);
    const Assignment state(example.request, example.layout);
    const auto server = static_cast<int>(random.below(state.num_servers()));
    if (state.shards(server).empty()) continue;
    const Shard& shard = state.shards(server)[random.below(state.shards(server).size())];
    const Range q = random_part(shard.q, random);
    const Range kv = intersect(random_part(shard.kv, random), example.request.shape.mask.keys(q));
    if (kv.empty()) continue;
    int64_t load = state.with_keys(shard.document, q, kv, shard.home).load;
    const ShardRemainder remainder = state.without(shard, q, kv);
    for (const Shard& part : remainder.span()) {
      EXPECT_GT(part.load, 0);
      EXPECT_TRUE(intersect(part.q, q).empty() || intersect(part.kv, kv).empty());
      load += part.load;
    }
    EXPECT_EQ(load, shard.load);
    parts += static_cast<int>(remainder.size);
  }
  EXPECT_GT(parts, 1000);
}

void expect_as_accounted(const Assignment& state, const AssignmentCase& example) {
  Plan plan;
  plan.nano_batch = example.request.nano_batch;
  plan.cluster = example.request.cluster;
  plan.shape = example.request.shape;
  plan.layout = example.layout;
  plan.tasks = state.tasks();
  testing::complete(plan);
  for (int server = 0; server < state.num_servers(); ++server) {
    EXPECT_EQ(state.load(server), plan.load[server].pairs);
    EXPECT_EQ(state.send_bytes(server), plan.load[server].send_bytes);
    EXPECT_EQ(state.receive_bytes(server), plan.load[server].receive_bytes);
    EXPECT_EQ(state.memory_bytes(server), plan.load[server].memory_bytes);
  }
}

TEST(Assignment, bytes_after_any_changes_are_those_that_the_accounting_counts) {
  Random random(11);
  for (int trial = 0; trial < 300; ++trial) {
    const AssignmentCase example = random_case(random);
    Assignment state(example.request, example.layout);
    expect_as_accounted(state, example);
    for (int change = 0; change < 12; ++change) random_change(state, random);
    expect_as_accounted(state, example);
  }
}

TEST(Assignment, a_trial_taken_back_leaves_no_trace) {
  Random random(12);
  for (int trial = 0; trial < 100; ++trial) {
    const AssignmentCase example = random_case(random);
    Assignment state(example.request, example.layout);
    for (int change = 0; change < 4; ++change) random_change(state, random);
    const std::vector<Task> before = state.tasks();
    const int64_t price = state.price();
    state.begin_trial();
    for (int change = 0; change < 8; ++change) random_change(state, random);
    state.undo_trial();
    EXPECT_EQ(state.tasks(), before);
    EXPECT_EQ(state.price(), price);
    expect_as_accounted(state, example);
  }
}

TEST(Assignment, a_key_is_fetched_once_and_not_at_all_where_it_lives) {
  PlanRequest request = testing::request_for({1024}, 3);
  Layout layout;
  layout.workers = {{{0, {0, 512}}}, {{0, {512, 1024}}}, {}};
  Assignment state(request, layout);
  const int64_t q = request.shape.q_token_bytes();
  const int64_t kv = request.shape.kv_token_bytes();
  EXPECT_EQ(state.receive_bytes(0), 0);
  EXPECT_EQ(state.receive_bytes(1), 512 * kv);  // its own 512 keys are there

  const Shard top = state.whole_context(0, {896, 1024}, 1);
  EXPECT_EQ(state.to_add(2, top).received, 128 * q + 1024 * kv);
  EXPECT_EQ(state.to_add(0, top).received, 128 * q + 512 * kv);
  state.shrink(1, 0, std::vector<Shard>{state.whole_context(0, {512, 896}, 1)});
  state.add(2, top);
  EXPECT_EQ(state.to_add(2, state.whole_context(0, {768, 896}, 1)).received, 128 * q);
}

TEST(Assignment, neighbouring_rows_of_a_segment_are_one_task) {
  PlanRequest request = testing::request_for({1024}, 2);
  Layout layout;
  layout.workers = {{{0, {0, 512}}, {0, {512, 1024}}}, {}};
  Assignment state(request, layout);
  EXPECT_EQ(state.tasks().size(), 2);  // one a segment
  state.shrink(0, 0, std::vector<Shard>{state.whole_context(0, {0, 128}, 0)});
  state.add(1, state.whole_context(0, {256, 512}, 0));
  state.add(1, state.whole_context(0, {128, 256}, 0));
  ASSERT_EQ(state.shards(1).size(), 1);
  EXPECT_EQ(state.shards(1)[0].q, (Range{128, 512}));
  EXPECT_EQ(state.shards(1)[0].kv, (Range{0, 512}));
}

TEST(Assignment, a_full_sender_blocks) {
  PlanRequest request = testing::request_for({1024}, 2);
  Layout layout;
  layout.workers = {{{0, {0, 1024}}}, {}};
  const int64_t all = 1024 * request.shape.kv_token_bytes() + 128 * request.shape.q_token_bytes();
  request.cluster.max_send_bytes = all;
  const Assignment enough(request, layout);
  EXPECT_FALSE(enough.to_add(1, enough.whole_context(0, {896, 1024}, 0)).blocked);
  request.cluster.max_send_bytes = all - 1;
  const Assignment less(request, layout);
  EXPECT_TRUE(less.to_add(1, less.whole_context(0, {896, 1024}, 0)).blocked);
}

}  // namespace
}  // namespace distca
