#include "distca/kernels/varlen_launches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "distca/base/error.h"
#include "distca/kernels/varlen_launches_testing.h"

namespace distca::kernels {
namespace {

using testing::add_keys;
using testing::copies_once;
using ::testing::ElementsAre;
using testing::expect_like_the_reference;
using ::testing::IsEmpty;
using testing::kType;
using testing::World;

/// Keys of a document as they lie in memory.
struct Segment {
  Range keys;
  size_t store;
  int64_t row;
};

void add_random_task(World& world, const std::vector<Segment>& document, const Mask& mask) {
  const int64_t length = document.back().keys.end;
  const int64_t begin = world.uniform(0, length), end = world.uniform(begin, length);
  Task& task = world.add_task({begin, end}, mask);
  Range keys{0, world.uniform(0, 3) == 0 ? length : end};
  if (world.uniform(0, 2) == 0) keys = {world.uniform(0, keys.end), world.uniform(0, keys.end)};
  for (const Segment& segment : document) {
    Range part = intersect(keys, segment.keys);
    while (!part.empty()) {
      const int64_t tokens = world.uniform(0, 2) == 0 ? world.uniform(1, part.size()) : part.size();
      add_keys(task, part.begin, tokens, segment.store,
               segment.row + part.begin - segment.keys.begin);
      part.begin += tokens;
    }
  }
}

/// Tasks of several documents, whose keys lie in any of three buffers.
void add_random_documents(World& world, uint64_t seed) {
  const Mask masks[] = {{},
                        {.causal = false},
                        {.window_left = 0},
                        {.window_left = 7},
                        {.causal = false, .window_left = 9, .window_right = 4},
                        {.causal = false, .window_left = 12},
                        {.window_left = std::numeric_limits<int32_t>::max()},
                        {.causal = false, .window_right = 3}};
  std::vector<int64_t> used;
  for (int store = 0; store < 3; ++store) world.add_store(200), used.push_back(0);
  for (int64_t documents = world.uniform(1, 3); documents > 0; --documents) {
    std::vector<Segment> document;
    for (int64_t at = 0, n = world.uniform(1, 4); n > 0; --n) {
      const int64_t tokens = world.uniform(1, 15), store = world.uniform(0, 2);
      int64_t& row = used[store] += world.uniform(0, 1) * world.uniform(0, 5);
      document.push_back({{at, at + tokens}, static_cast<size_t>(store), row});
      at += tokens, row += tokens;
    }
    for (int64_t tasks = world.uniform(0, 6); tasks > 0; --tasks) {
      add_random_task(world, document, masks[seed % std::size(masks)]);
    }
  }
}

TEST(VarlenLaunches, equal_the_reference_for_random_tasks_in_any_memory) {
  for (uint64_t seed = 0; seed < 140; ++seed) {
    SCOPED_TRACE(seed);
    World world(seed);
    if (seed % 3 == 0) world.limits.sequences = 2 + static_cast<int64_t>(seed % 4);
    if (seed % 2 == 0) world.limits.short_rows = 1 + static_cast<int64_t>(seed % 5);
    if (seed % 3 == 0) world.limits.padding_rows = kPaddingRows * static_cast<int64_t>(seed % 7);
    add_random_documents(world, seed);
    expect_like_the_reference(world);
    EXPECT_TRUE(copies_once(world.forward_plan()));
    EXPECT_TRUE(copies_once(world.backward_plan()));
    if (HasFailure()) return;
  }
}

TEST(VarlenLaunches, a_lone_key_needs_no_token_stride) {
  World world(1);
  world.add_store(1);
  for (const Range& queries : {Range{0, 4}, Range{4, 6}}) {
    add_keys(world.add_task(queries), 0, 1, 0, 0);
  }
  world.list.keys[0].k.token_stride = world.list.keys[0].v.token_stride = 0;
  expect_like_the_reference(world);
  EXPECT_EQ(world.forward_plan().launches.size(), 2u);  // causal, and seen whole
  EXPECT_TRUE(world.forward_plan().gathered.empty());
}

/// A document of `length` keys in store 0, and a task for each shard with the keys it may see.
World shards(int64_t length, const std::vector<Range>& queries, const Mask& mask = {}) {
  World world(1);
  world.add_store(length);
  for (const Range& range : queries) {
    add_keys(world.add_task(range, mask), 0, range.end, 0, 0);
  }
  return world;
}

TEST(VarlenLaunches, forward_shards_of_a_document_share_its_keys_where_they_lie) {
  World world = shards(100, {{10, 30}, {60, 100}});
  const VarlenPlan plan = world.forward_plan();
  EXPECT_TRUE(plan.gathered.empty());
  ASSERT_EQ(plan.launches.size(), 1u);
  const VarlenLaunch& launch = plan.launches[0];
  EXPECT_EQ(launch.buffer, 0);
  EXPECT_EQ(launch.key_rows, (Range{0, 100}));
  EXPECT_TRUE(launch.right_limited);
  EXPECT_THAT(launch.cu_seqlens_q, ElementsAre(0, 20, 60));
  EXPECT_THAT(launch.key_starts, ElementsAre(0, 0, 100));
  EXPECT_THAT(launch.keys_used, ElementsAre(30, 100));
  EXPECT_EQ(launch.max_queries, 40);
  EXPECT_EQ(launch.max_keys, 100);
}

TEST(VarlenLaunches, backward_neighbours_are_one_sequence_and_others_another_launch) {
  World world = shards(100, {{30, 40}, {10, 30}, {60, 100}});
  const VarlenPlan plan = world.backward_plan();
  ASSERT_EQ(plan.launches.size(), 2u);
  EXPECT_THAT(plan.launches[0].pieces,
              ElementsAre(QueryPiece{1, {10, 30}}, QueryPiece{0, {30, 40}}));
  EXPECT_THAT(plan.launches[0].keys_used, ElementsAre(40));
  EXPECT_THAT(plan.launches[1].keys_used, ElementsAre(100));
  expect_like_the_reference(world);
}

TEST(VarlenLaunches, backward_keys_that_no_sequence_reads_are_a_sequence_without_queries) {
  World world(1);
  world.add_store(100);
  add_keys(world.add_task({0, 20}), 0, 20, 0, 0);    // document 1: rows 0 to 20
  add_keys(world.add_task({0, 50}), 0, 50, 0, 20);   // document 2: rows 20 to 70
  add_keys(world.add_task({90, 99}), 0, 50, 0, 20);  // ... seen whole: another mask
  add_keys(world.add_task({0, 30}), 0, 30, 0, 70);   // document 3: rows 70 to 100
  add_keys(world.add_task({85, 95}), 10, 15, 0, 5);  // keys of document 1, seen whole
  const VarlenPlan plan = world.backward_plan();
  ASSERT_EQ(plan.launches.size(), 2u);
  EXPECT_TRUE(plan.launches[0].right_limited);
  EXPECT_THAT(plan.launches[0].key_starts, ElementsAre(0, 20, 70, 100));
  EXPECT_FALSE(plan.launches[1].right_limited);
  EXPECT_EQ(plan.launches[1].key_rows, (Range{5, 70}));
  EXPECT_THAT(plan.launches[1].cu_seqlens_q, ElementsAre(0, 10, 19));
  EXPECT_THAT(plan.launches[1].key_starts, ElementsAre(0, 15, 65));
  expect_like_the_reference(world);
  world.list.tasks[4].keys[0].tokens = 10;
  const VarlenPlan gap = world.backward_plan();
  EXPECT_THAT(gap.launches[1].cu_seqlens_q, ElementsAre(0, 10, 10, 19));
  EXPECT_THAT(gap.launches[1].key_starts, ElementsAre(0, 10, 15, 65));
  expect_like_the_reference(world);
}

TEST(VarlenLaunches, gradients_that_adjoin_in_memory_are_added_at_once) {
  World world(1);
  world.add_store(60);
  for (const int64_t row : {40, 0, 20}) {
    add_keys(world.add_task({0, 20}), 0, 20, 0, row);
  }
  const VarlenPlan plan = world.backward_plan();
  ASSERT_EQ(plan.launches.size(), 1u);
  EXPECT_EQ(plan.launches[0].sequences(), 3);
  ASSERT_EQ(plan.launches[0].gradients.size(), 1u);
  EXPECT_EQ(plan.launches[0].gradients[0].tokens, 60);
  expect_like_the_reference(world);
}

TEST(VarlenLaunches, keys_that_end_before_the_diagonal_are_cut_into_causal_and_full) {
  World world(1);
  world.add_store(100);
  add_keys(world.add_task({30, 90}), 20, 40, 0, 20);  // keys 20 to 60
  add_keys(world.add_task({0, 10}), 20, 40, 0, 20);   // sees none
  const VarlenPlan plan = world.forward_plan();
  ASSERT_EQ(plan.launches.size(), 2u);
  EXPECT_TRUE(plan.launches[0].right_limited);
  EXPECT_THAT(plan.launches[0].pieces, ElementsAre(QueryPiece{0, {30, 60}}));
  EXPECT_FALSE(plan.launches[1].right_limited);
  EXPECT_THAT(plan.launches[1].pieces, ElementsAre(QueryPiece{0, {60, 90}}));
  EXPECT_THAT(plan.launches[1].keys_used, ElementsAre(40));
  expect_like_the_reference(world);
}

TEST(VarlenLaunches, a_window_alone_at_the_left_may_have_more_queries_than_keys) {
  World world(1);
  world.add_store(10);
  add_keys(world.add_task({10, 40}, {.window_left = 25}), 0, 10, 0, 0);
  expect_like_the_reference(world);
  const VarlenPlan plan = world.forward_plan();
  ASSERT_EQ(plan.launches.size(), 1u);
  EXPECT_THAT(plan.launches[0].pieces, ElementsAre(QueryPiece{0, {10, 35}}));
  EXPECT_EQ(plan.launches[0].max_keys, 25);
}

TEST(VarlenLaunches, a_window_that_reaches_all_keys_is_no_limit) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  // The last of 100 queries has 99 keys before it.
  for (const auto& [window, left] :
       {std::pair<int64_t, int64_t>{98, 98}, {99, -1}, {kMost - 50, -1}, {kMost, -1}}) {
    World world = shards(100, {{0, 100}}, {.window_left = window});
    for (const VarlenPlan& plan : {world.forward_plan(), world.backward_plan()}) {
      ASSERT_EQ(plan.launches.size(), 1u);
      EXPECT_EQ(plan.launches[0].window_left, left) << window;
      EXPECT_TRUE(plan.launches[0].right_limited);
    }
    expect_like_the_reference(world);
  }
}

TEST(VarlenLaunches, keys_in_several_memories_are_gathered_once_for_all_their_tasks) {
  World world(1);
  for (int store = 0; store < 3; ++store) world.add_store(100);
  const auto document = [&](Task& task, int64_t to) {
    add_keys(task, 0, 20, 0, 5);
    add_keys(task, 20, std::min<int64_t>(to, 50) - 20, 1, 7);
    if (to > 50) add_keys(task, 50, to - 50, 2, 0);
  };
  document(world.add_task({20, 40}), 40);
  document(world.add_task({45, 80}), 80);
  add_keys(world.add_task({0, 20}), 0, 20, 0, 5);  // lies in a row
  const VarlenPlan plan = world.forward_plan();
  EXPECT_EQ(plan.gathered_rows(), 80);
  ASSERT_EQ(plan.gathered.size(), 3u);
  EXPECT_EQ(plan.gathered[2].row, 50);
  ASSERT_EQ(plan.launches.size(), 2u);
  EXPECT_EQ(plan.launches[0].buffer, 0);
  EXPECT_EQ(plan.launches[1].buffer, kGathered);
  EXPECT_THAT(plan.launches[1].key_starts, ElementsAre(0, 0, 80));
  expect_like_the_reference(world);
}

TEST(VarlenLaunches, a_position_stored_twice_is_read_from_where_each_task_has_it) {
  World world(1);
  for (int store = 0; store < 2; ++store) world.add_store(60);
  for (const size_t store : {0, 1}) {
    Task& task = world.add_task({20, 40});
    add_keys(task, 0, 20, 0, 0);
    add_keys(task, 20, 20, 1, store == 0 ? 3 : 30);
  }
  EXPECT_EQ(world.forward_plan().gathered_rows(), 80);
  expect_like_the_reference(world);
}

TEST(VarlenLaunches, lengths_of_one_class_share_a_launch) {
  const LaunchLimits limits;
  for (const auto& [queries, length] :
       {std::pair(1, 0), std::pair(512, 0), std::pair(513, 1), std::pair(2048, 1),
        std::pair(2049, 2), std::pair(8192, 2), std::pair(8193, 3), std::pair(1 << 20, 6)})
    EXPECT_EQ(length_class(queries, limits), length) << queries;
  World world(1);
  world.limits.short_rows = 4;
  world.add_store(200);
  int64_t row = 0;
  for (const int64_t tokens : {3, 60, 4, 17, 5, 1}) {
    add_keys(world.add_task({0, tokens}), 0, tokens, 0, row);
    row += tokens;
  }
  for (const VarlenPlan& plan : {world.forward_plan(), world.backward_plan()}) {
    std::vector<int64_t> longest;
    for (const VarlenLaunch& launch : plan.launches) longest.push_back(launch.max_queries);
    EXPECT_THAT(longest, ElementsAre(4, 5, 60));
  }
  // Backward: the keys between two of a class are read by nobody.
  EXPECT_THAT(world.backward_plan().launches[0].cu_seqlens_q, ElementsAre(0, 3, 3, 7, 7, 8));
  expect_like_the_reference(world);
}

TEST(VarlenLaunches, backward_classes_go_by_keys) {
  World world(1);
  world.limits.short_rows = 4;
  world.add_store(200);
  int64_t row = 0;
  for (const auto& [queries, keys] : {std::pair(3, 3), std::pair(4, 100), std::pair(2, 4)}) {
    add_keys(world.add_task({keys - queries, keys}), 0, keys, 0, row);
    row += keys;
  }
  EXPECT_EQ(world.forward_plan().launches.size(), 1u);
  std::vector<int64_t> most_keys;
  for (const VarlenLaunch& launch : world.backward_plan().launches)
    most_keys.push_back(launch.max_keys);
  EXPECT_THAT(most_keys, ElementsAre(4, 100));
  expect_like_the_reference(world);
}

TEST(VarlenLaunches, backward_pads_no_more_than_it_computes) {
  World world(1);
  world.limits.padding_rows = 3 * kPaddingRows;
  world.add_store(60);
  for (int64_t row = 0; row < 35; row += 5) add_keys(world.add_task({0, 5}), 0, 5, 0, row);
  std::vector<int64_t> sequences;
  for (const VarlenLaunch& launch : world.backward_plan().launches)
    sequences.push_back(launch.sequences());
  EXPECT_THAT(sequences, ElementsAre(3, 3, 1));
  EXPECT_EQ(world.forward_plan().launches.size(), 1u);
  expect_like_the_reference(world);
}

TEST(VarlenLaunches, only_documents_of_one_buffer_share_a_launch) {
  World world(1);
  world.add_store(40), world.add_store(40);
  add_keys(world.add_task({0, 20}), 0, 20, 0, 0);
  add_keys(world.add_task({0, 20}), 0, 20, 0, 20);
  EXPECT_EQ(world.forward_plan().launches.size(), 1u);
  EXPECT_EQ(world.backward_plan().launches.size(), 1u);
  world.list.tasks[1].keys[0].buffer = 1;
  EXPECT_EQ(world.forward_plan().launches.size(), 2u);
  EXPECT_EQ(world.backward_plan().launches.size(), 2u);
  expect_like_the_reference(world);
}

TEST(VarlenLaunches, forward_shares_a_buffer_over_gaps_and_backward_does_not) {
  World world(1);
  world.add_store(100);
  add_keys(world.add_task({0, 20}), 0, 20, 0, 0);
  add_keys(world.add_task({0, 20}), 0, 20, 0, 50);
  EXPECT_EQ(world.forward_plan().launches.size(), 1u);
  EXPECT_EQ(world.backward_plan().launches.size(), 2u);
  expect_like_the_reference(world);
}

TEST(VarlenLaunches, memory_that_is_not_aligned_is_gathered) {
  World world(1);
  world.add_store(20);
  add_keys(world.add_task({0, 20}), 0, 20, 0, 0);
  EXPECT_TRUE(world.forward_plan().gathered.empty());
  std::vector<double> moved(20 * 18 + 1);
  world.list.keys[0].k.data = moved.data() + 1;
  EXPECT_EQ(world.forward_plan().gathered_rows(), 20);
}

TEST(VarlenLaunches, more_sequences_than_a_grid_has_are_further_launches) {
  constexpr int64_t kTasks = 70'000;
  std::vector<double> memory(8 * kTasks);
  const Rows rows{.data = memory.data(), .token_stride = 8, .head_stride = 8};
  TaskList list{.queries = {{.tokens = 1}},
                .keys = {{.tokens = kTasks, .k = rows, .v = rows, .dk = rows, .dv = rows}}};
  for (int64_t i = 0; i < kTasks; ++i) {
    list.tasks.push_back({.q_tokens = 1, .keys = {{.row = i, .tokens = 1}}});
  }
  for (const bool backward : {false, true}) {
    const VarlenPlan plan =
        backward ? plan_backward_launches(kType, list, {.padding_rows = kPaddingRows * kTasks})
                 : plan_forward_launches(kType, list);
    ASSERT_EQ(plan.launches.size(), 2u) << backward;
    EXPECT_EQ(plan.launches[0].sequences(), 65'535);
    EXPECT_EQ(plan.launches[1].sequences(), kTasks - 65'535);
    EXPECT_EQ(plan.launches[1].pieces[0].task, 65'535u);
  }
}

TEST(VarlenLaunches, sequences_without_queries_count_among_those_of_a_launch) {
  World world(1);
  world.add_store(100);
  // One buffer, as forward's task reads it whole; every second key is of a sequence.
  add_keys(world.add_task({90, 99}), 0, 50, 0, 0);
  for (int64_t i = 0; i < 5; ++i) {
    add_keys(world.add_task({0, 5}), 0, 5, 0, 10 * i);
  }
  world.limits.sequences = 3;
  std::vector<int64_t> sequences;
  for (const VarlenLaunch& launch : world.backward_plan().launches) {
    if (launch.right_limited) sequences.push_back(launch.sequences());
  }
  EXPECT_THAT(sequences, ElementsAre(3, 3, 1));  // two with the gap between them; the fifth
  expect_like_the_reference(world);
}

/// All numbers of a plan.
std::vector<int64_t> numbers_of(const VarlenPlan& plan) {
  std::vector<int64_t> all;
  const auto add_keys = [&all](const std::vector<RowRun>& runs) {
    for (const auto& [buffer, from, tokens, row] : runs)
      all.insert(all.end(), {buffer, from, tokens, row});
  };
  add_keys(plan.gathered);
  for (const VarlenLaunch& launch : plan.launches) {
    all.insert(all.end(),
               {launch.buffer, launch.key_rows.begin, launch.key_rows.end, launch.right_limited,
                launch.window_left, launch.max_queries, launch.max_keys, launch.sequences()});
    for (const auto* list : {&launch.cu_seqlens_q, &launch.key_starts, &launch.keys_used})
      all.insert(all.end(), list->begin(), list->end());
    for (const auto& [task, queries] : launch.pieces)
      all.insert(all.end(), {static_cast<int64_t>(task), queries.begin, queries.end});
    add_keys(launch.gradients);
  }
  return all;
}

TEST(VarlenLaunches, depend_on_no_address_but_on_which_keys_lie_aligned) {
  for (uint64_t seed = 0; seed < 140; ++seed) {
    SCOPED_TRACE(seed);
    World world(seed);
    add_random_documents(world, seed);
    const auto both_plans = [&world] {
      return std::pair(numbers_of(world.forward_plan()), numbers_of(world.backward_plan()));
    };
    const auto move = [&world](int64_t store, int64_t bytes) {
      Rows& rows = world.list.keys[store].k;
      rows.data = static_cast<std::byte*>(rows.data) + bytes;
    };
    const auto plans = both_plans();
    const std::vector<bool> aligned = aligned_keys(kType, world.list);
    for (int64_t store = 0; store < 3; ++store) {
      move(store, kVarlenAlignment * world.uniform(1, 1000));
      for (QueryBuffer& queries : world.list.queries) queries.q.data = nullptr;
    }
    ASSERT_EQ(aligned_keys(kType, world.list), aligned);
    ASSERT_EQ(both_plans(), plans);
    const int64_t store = world.uniform(0, 2);
    move(store, 8);
    ASSERT_EQ(aligned_keys(kType, world.list)[store], !aligned[store]);
  }
}

TEST(VarlenLaunches, nothing_to_do_is_no_launch) {
  World world = shards(10, {{4, 4}});
  world.add_task({0, 5});  // no keys
  EXPECT_THAT(world.forward_plan().launches, IsEmpty());
  EXPECT_THAT(world.backward_plan().launches, IsEmpty());
  EXPECT_THAT(plan_forward_launches(kType, {}).gathered, IsEmpty());
}

TEST(VarlenLaunches, a_gap_between_keys_is_a_check) {
  World world(1);
  world.add_store(20);
  Task& task = world.add_task({0, 20});
  add_keys(task, 0, 5, 0, 0);
  add_keys(task, 6, 5, 0, 6);
  EXPECT_FALSE(keys_are_consecutive(task.keys));
  EXPECT_THROW(world.forward_plan(), CheckFailure);
}

}  // namespace
}  // namespace distca::kernels
