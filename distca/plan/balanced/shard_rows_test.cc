#include "distca/plan/balanced/shard_rows.h"

#include <gtest/gtest.h>

#include "distca/base/random.h"
#include "distca/batch/layout.h"

namespace distca {
namespace {

TEST(ShardRows, the_closed_form_finds_what_the_search_finds) {
  const AttentionShape all;
  AttentionShape wide;
  wide.window_left = int64_t{1} << 29;  // sees all keys, but is searched
  const TaskPrice all_price(all);
  const TaskPrice wide_price(wide);
  const ShardRows closed(all, all_price);
  const ShardRows searched(wide, wide_price);
  Random random(7);
  for (int trial = 0; trial < 2000; ++trial) {
    const auto begin = static_cast<int64_t>(random.below(300)) * kBlockTokens;
    const Range q{begin, begin + 1 + static_cast<int64_t>(random.below(60'000))};
    const int64_t load = closed.load(q);
    const int64_t wanted = 1 + static_cast<int64_t>(random.below(load));
    const int64_t most = wanted + static_cast<int64_t>(random.below(load));
    EXPECT_EQ(closed.ending_at(q.end, q, wanted, most), searched.ending_at(q.end, q, wanted, most));
    EXPECT_EQ(closed.from_begin(q, wanted, most), searched.from_begin(q, wanted, most));
  }
}

TEST(ShardRows, a_shard_is_cut_at_blocks_and_as_near_the_wanted_load_as_they_allow) {
  const AttentionShape shape;
  const TaskPrice price(shape);
  const ShardRows rows(shape, price);
  const Range q{1280, 10'007};
  const int64_t wanted = 20'000'000;
  const auto top = rows.ending_at(q.end, q, wanted, wanted * 2);
  ASSERT_TRUE(top);
  EXPECT_EQ(top->begin % kBlockTokens, 0);
  EXPECT_EQ(top->end, q.end);
  EXPECT_GE(rows.load(*top), wanted);
  EXPECT_LT(rows.load({top->begin + kBlockTokens, q.end}), wanted);

  const auto within = rows.ending_at(q.end, q, wanted, wanted);
  ASSERT_TRUE(within);
  EXPECT_LE(rows.load(*within), wanted);
  EXPECT_EQ(within->begin, top->begin + kBlockTokens);
  EXPECT_FALSE(rows.ending_at(q.end, q, 1000, 1000));  // one row has more pairs
}

TEST(ShardRows, in_a_window_all_rows_below_cost_alike) {
  AttentionShape shape;
  shape.window_left = 1000;
  const TaskPrice price(shape);
  const ShardRows rows(shape, price);
  const int64_t four_blocks = 4 * kBlockTokens * 1001;
  const auto top =
      rows.ending_at(64 * kBlockTokens, {0, 64 * kBlockTokens}, four_blocks, 2 * four_blocks);
  EXPECT_EQ(top, (Range{60 * kBlockTokens, 64 * kBlockTokens}));
}

}  // namespace
}  // namespace distca
