#include "distca/kernels/cpu/overlaps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <list>

namespace distca::kernels {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr int64_t kHeads = 4, kKvHeads = 2, kDim = 8;
const Shape kShape{
    .num_heads = kHeads, .num_kv_heads = kKvHeads, .head_dim_qk = kDim, .head_dim_v = kDim};

/// Memory is only named here, never touched.
float* address(int64_t buffer, int64_t element = 0) {
  return reinterpret_cast<float*>((buffer + 1) << 32) + element;
}

/// [tokens, heads, dim], from `token` on.
Rows token_major(int64_t buffer, int64_t token, int64_t heads) {
  return {address(buffer, token * heads * kDim), heads * kDim, kDim};
}

class TaskList {
 public:
  /// Queries at rows [q, q + q_tokens) of buffer 0; keys at rows [k, k + k_tokens) of buffers 1
  /// (dk) and 2 (dv), at position k + shift.
  BackwardTask& add(int64_t q, int64_t q_tokens, int64_t k, int64_t k_tokens, int64_t shift = 0) {
    keys_.push_back({.tokens = k_tokens, .position = k + shift});
    gradients_.push_back({token_major(1, k, kKvHeads), token_major(2, k, kKvHeads)});
    tasks_.push_back({.dq = token_major(0, q, kHeads),
                      .q_tokens = q_tokens,
                      .keys = {&keys_.back(), 1},
                      .key_gradients = {&gradients_.back(), 1}});
    return tasks_.back();
  }
  KeyGradient& gradient() { return gradients_.back(); }
  TaskOverlaps find() const { return find_overlaps(kShape, tasks_); }

 private:
  std::list<KeyFragment> keys_;
  std::list<KeyGradient> gradients_;
  std::vector<BackwardTask> tasks_;
};

TEST(OverlapsTest, tasks_that_share_nothing_stay_apart) {
  TaskList list;
  for (int64_t i = 0; i < 4; ++i) list.add(100 * i, 100, 50 * i, 50);
  const TaskOverlaps overlaps = list.find();
  EXPECT_THAT(overlaps.keys, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(overlaps.queries, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(overlaps.families, ElementsAre(0, 1, 2, 3));
}

TEST(OverlapsTest, shared_keys_connect_tasks_whatever_their_order_in_the_list) {
  TaskList list;
  list.add(0, 10, 0, 60);
  list.add(10, 10, 200, 50);
  list.add(20, 10, 90, 30);
  list.add(30, 10, 50, 50);  // meets tasks 0 and 2
  const TaskOverlaps overlaps = list.find();
  EXPECT_THAT(overlaps.keys, ElementsAre(0, 1, 0, 0));
  EXPECT_THAT(overlaps.queries, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(overlaps.families, ElementsAre(0, 1, 0, 0));
  EXPECT_THAT(overlaps.strict, Each(false));
}

TEST(OverlapsTest, shared_queries_connect_tasks_with_different_keys) {
  TaskList list;
  list.add(0, 100, 0, 50);
  list.add(50, 100, 50, 50);
  list.add(150, 10, 100, 50);
  const TaskOverlaps overlaps = list.find();
  EXPECT_THAT(overlaps.keys, ElementsAre(0, 1, 2));
  EXPECT_THAT(overlaps.queries, ElementsAre(0, 0, 2));
  EXPECT_THAT(overlaps.families, ElementsAre(0, 0, 2));
  EXPECT_EQ(overlaps.query_token[1] - overlaps.query_token[0], 50);
}

TEST(OverlapsTest, gradients_that_lie_between_each_other_do_not_overlap) {
  for (const int64_t dv_offset : {kKvHeads * kDim, 3 * kKvHeads * kDim}) {
    TaskList list;
    for (int64_t i = 0; i < 3; ++i) {
      list.add(100 * i, 100, 50 * i, 50);
      // [tokens, 4, heads, dim] in one buffer.
      const int64_t row = 4 * kKvHeads * kDim;
      list.gradient() = {{address(7, 50 * i * row), row, kDim},
                         {address(7, 50 * i * row + dv_offset), row, kDim}};
    }
    const TaskOverlaps overlaps = list.find();
    EXPECT_THAT(overlaps.families, ElementsAre(0, 1, 2));
    EXPECT_THAT(overlaps.strict, Each(false));
  }
}

TEST(OverlapsTest, documents_side_by_side_in_each_head_do_not_overlap) {
  TaskList list;
  for (int64_t i = 0; i < 3; ++i) {
    list.add(100 * i, 100, 50 * i, 50);
    // [heads, 1000 tokens, dim].
    list.gradient() = {{address(7, 50 * i * kDim), kDim, 1000 * kDim},
                       {address(8, 50 * i * kDim), kDim, 1000 * kDim}};
  }
  EXPECT_THAT(list.find().families, ElementsAre(0, 1, 2));
  list.add(300, 100, 20, 100);
  list.gradient() = {{address(7, 20 * kDim), kDim, 1000 * kDim},
                     {address(8, 20 * kDim), kDim, 1000 * kDim}};
  const TaskOverlaps overlaps = list.find();
  EXPECT_THAT(overlaps.keys, ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(overlaps.strict, Each(false));
}

TEST(OverlapsTest, one_token_overlaps_the_rows_it_lies_in) {
  TaskList list;
  list.add(0, 10, 0, 60);
  list.add(10, 10, 30, 1);
  list.add(20, 1, 60, 1);
  EXPECT_THAT(list.find().keys, ElementsAre(0, 0, 2));
}

TEST(OverlapsTest, memory_shared_at_different_positions_is_strict) {
  TaskList list;
  list.add(0, 10, 0, 60);
  list.add(10, 10, 100, 60);
  list.add(20, 10, 130, 60, /*shift=*/-130);
  const TaskOverlaps overlaps = list.find();
  EXPECT_THAT(overlaps.families, ElementsAre(0, 1, 1));
  EXPECT_THAT(overlaps.strict, ElementsAre(false, true, false));
}

TEST(OverlapsTest, memory_shared_in_different_layouts_is_strict) {
  const Rows layouts[] = {
      {address(1, kDim), kKvHeads * kDim, kDim},  // heads shifted by one
      {address(1, 4), kKvHeads * kDim, kDim},     // half a row
      {address(1), 2 * kKvHeads * kDim, kDim},    // every other token
      {address(1), kKvHeads * kDim, 0},           // the heads on one another
      {address(1), kDim, 30 * kDim},              // heads outside
      {address(2), kKvHeads * kDim, kDim},        // dk on dv
      {address(0), kKvHeads * kDim, kDim},        // dk on dq
      {address(0, 0), kHeads * kDim, kDim},       // dk on dq, same stride
  };
  for (const Rows& rows : layouts) {
    TaskList list;
    list.add(0, 10, 0, 60);
    list.add(100, 10, 100, 60, -100);
    list.gradient().dk = rows;
    const TaskOverlaps overlaps = list.find();
    EXPECT_THAT(overlaps.families, ElementsAre(0, 0)) << (&rows - layouts);
    EXPECT_TRUE(overlaps.strict[0]) << (&rows - layouts);
  }
}

TEST(OverlapsTest, tasks_without_rows_overlap_nothing) {
  TaskList list;
  list.add(0, 10, 0, 60);
  list.add(0, 0, 0, 0);
  EXPECT_THAT(list.find().families, ElementsAre(0, 1));
  EXPECT_TRUE(find_overlaps(kShape, {}).keys.empty());
}

}  // namespace
}  // namespace distca::kernels
