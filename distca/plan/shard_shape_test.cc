#include "distca/plan/shard_shape.h"

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

}  // namespace
}  // namespace distca
