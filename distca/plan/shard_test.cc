#include "distca/plan/shard.h"

#include <gtest/gtest.h>

#include "distca/base/random.h"

namespace distca {
namespace {

TEST(ShardShape, paper_vector_inside_the_item) {
  const ShardShape shape = cheapest_shard(58'577, 92'204, 0.276, 8192, 2048);
  EXPECT_NEAR(shape.n_q, 15'035, 1);
  EXPECT_NEAR(shape.n_kv, 75'173, 1);
}

TEST(ShardShape, paper_vector_at_the_lower_clamp) {
  const ShardShape shape = cheapest_shard(31'149, 59'915, 0.646, 8192, 2048);
  EXPECT_NEAR(shape.n_q, 17'426, 1);
  EXPECT_NEAR(shape.n_kv, 59'915, 1);
}

TEST(ShardShape, paper_vector_at_the_upper_clamp) {
  const ShardShape shape = cheapest_shard(2267, 18'611, 0.265, 8192, 16'384);
  EXPECT_NEAR(shape.n_q, 630, 1);
  EXPECT_NEAR(shape.n_kv, 16'974, 1);
}

TEST(ShardShape, no_other_shard_of_the_item_is_cheaper) {
  Random random(4);
  for (int trial = 0; trial < 200; ++trial) {
    const double item_kv = 1000 + 50'000 * random.uniform();
    const double item_q = item_kv * (0.05 + 0.95 * random.uniform());
    const double share = 0.01 + 0.98 * random.uniform();
    const double q_bytes = 1024;
    const double kv_bytes = 128 + 8192 * random.uniform();
    const ShardShape shape = cheapest_shard(item_q, item_kv, share, q_bytes, kv_bytes);
    const double cost = shape.n_q * q_bytes + shape.n_kv * kv_bytes;
    const double rounding = 1e-9 * item_kv;  // a few double roundings of numbers up to item_kv^2
    EXPECT_LE(shape.n_kv, item_kv + rounding);
    EXPECT_GE(shape.n_kv - shape.n_q, item_kv - item_q - rounding);
    const double area = share * item_q * (2 * item_kv - item_q);
    for (int step = 1; step <= 1000; ++step) {
      const double n_q = item_q * step / 1000;
      const double n_kv = (area / n_q + n_q) / 2;
      if (n_kv > item_kv || n_kv - n_q < item_kv - item_q) continue;  // not within the item
      EXPECT_LE(cost, (n_q * q_bytes + n_kv * kv_bytes) * (1 + 1e-9));
    }
  }
}

TEST(ShardRows, the_closed_form_finds_what_the_search_finds) {
  const AttentionShape all;
  AttentionShape wide;
  wide.mask.window_left = int64_t{1} << 29;  // sees all keys, but is searched
  const TaskPrice all_price(all);
  const TaskPrice wide_price(wide);
  const ShardRows closed(all, all_price);
  const ShardRows searched(wide, wide_price);
  Random random(7);
  for (int trial = 0; trial < 2000; ++trial) {
    const auto begin = static_cast<int64_t>(random.below(300)) * kBlockTokens;
    const Range q{begin, begin + 1 + static_cast<int64_t>(random.below(60'000))};
    const int64_t load = all_price.of_rows(q);
    const int64_t wanted = 1 + static_cast<int64_t>(random.below(load));
    const int64_t most = wanted + static_cast<int64_t>(random.below(load));
    const LoadWish wish{wanted, most};
    EXPECT_EQ(closed.ending_at(q.end, q, wish), searched.ending_at(q.end, q, wish));
    EXPECT_EQ(closed.from_begin(q, wish), searched.from_begin(q, wish));
  }
}

TEST(ShardRows, a_shard_is_cut_at_blocks_and_as_near_the_wanted_load_as_they_allow) {
  const AttentionShape shape;
  const TaskPrice price(shape);
  const ShardRows rows(shape, price);
  const Range q{1280, 10'007};
  const int64_t wanted = 20'000'000;
  const Range top = rows.ending_at(q.end, q, {wanted, wanted * 2});
  ASSERT_FALSE(top.empty());
  EXPECT_EQ(top.begin % kBlockTokens, 0);
  EXPECT_EQ(top.end, q.end);
  EXPECT_GE(price.of_rows(top), wanted);
  EXPECT_LT(price.of_rows({top.begin + kBlockTokens, q.end}), wanted);

  const Range within = rows.ending_at(q.end, q, {wanted, wanted});
  ASSERT_FALSE(within.empty());
  EXPECT_LE(price.of_rows(within), wanted);
  EXPECT_EQ(within.begin, top.begin + kBlockTokens);
  EXPECT_TRUE(rows.ending_at(q.end, q, {1000, 1000}).empty());  // one row has more pairs
}

TEST(ShardRows, in_a_window_all_rows_below_cost_alike) {
  AttentionShape shape;
  shape.mask.window_left = 1000;
  const TaskPrice price(shape);
  const ShardRows rows(shape, price);
  const int64_t four_blocks = 4 * kBlockTokens * 1001;
  const Range top =
      rows.ending_at(64 * kBlockTokens, {0, 64 * kBlockTokens}, {four_blocks, 2 * four_blocks});
  EXPECT_EQ(top, (Range{60 * kBlockTokens, 64 * kBlockTokens}));
}

}  // namespace
}  // namespace distca
