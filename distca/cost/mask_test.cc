#include "distca/cost/mask.h"

#include <gtest/gtest.h>

#include "distca/base/random.h"

namespace distca {
namespace {

constexpr Mask kFull{.kind = MaskKind::kFull};

TEST(Mask, pairs_equal_a_count_one_by_one) {
  Random random(2);
  for (int trial = 0; trial < 4000; ++trial) {
    const auto q_begin = static_cast<int64_t>(random.below(30));
    const Range q{q_begin, q_begin + static_cast<int64_t>(random.below(20))};
    const auto kv_begin = static_cast<int64_t>(random.below(30));
    const Range kv{kv_begin, kv_begin + static_cast<int64_t>(random.below(20))};
    const auto window = static_cast<int64_t>(random.below(40)) - 1;
    int64_t pairs = 0, causal = 0;
    for (int64_t i = q.begin; i < q.end; ++i) {
      for (int64_t j = kv.begin; j < kv.end; ++j) {
        causal += j <= i;
        pairs += j <= i && (window < 0 || j >= i - window);
      }
    }
    const Mask mask{.window_left = window};
    EXPECT_EQ(mask.pairs(q, kv), pairs) << "[" << q.begin << ", " << q.end << ") x [" << kv.begin
                                        << ", " << kv.end << ") window " << window;
    EXPECT_EQ(Mask{}.pairs(q, kv), causal);
    EXPECT_EQ(mask.of_task(MaskKind::kCausal), mask);
    EXPECT_EQ(mask.of_task(MaskKind::kFull).pairs(q, kv), q.size() * kv.size());
  }
}

TEST(Mask, pairs_of_the_longest_document_do_not_overflow) {
  constexpr int64_t kLength = int64_t{1} << 30;
  const Range all{0, kLength};
  EXPECT_EQ(Mask{}.pairs(all, all), kLength / 2 * (kLength + 1));
  EXPECT_EQ(kFull.pairs(all, all), kLength * kLength);
  EXPECT_EQ(Mask{.window_left = kLength}.pairs(all, all), kLength / 2 * (kLength + 1));
  EXPECT_EQ(Mask{.window_left = 0}.pairs(all, all), kLength);
}

TEST(Mask, keys_are_all_that_a_query_sees_begun_at_a_block) {
  for (const int64_t window : {-1, 0, 1, 127, 128, 300}) {
    const Mask mask{.window_left = window};
    for (int64_t begin = 0; begin < 700; begin += 37) {
      const Range q{begin, begin + 50};
      const Range keys = mask.keys(q);
      // The first query sees furthest back.
      const int64_t first = window < 0 ? 0 : std::max<int64_t>(0, begin - window);
      EXPECT_EQ(keys.end, q.end);
      EXPECT_EQ(keys.begin % 128, 0);
      EXPECT_LE(keys.begin, first);
      EXPECT_GT(keys.begin + 128, first);
      EXPECT_EQ(mask.pairs(q, keys), mask.pairs(q, {0, 10000}));
    }
  }
}

TEST(Mask, only_a_causal_mask_without_a_window_sees_all_before) {
  EXPECT_TRUE(Mask{}.sees_all_before());
  EXPECT_FALSE(Mask{.window_left = 0}.sees_all_before());
  EXPECT_FALSE(kFull.sees_all_before());
}

TEST(Mask, pairs_of_the_paper) {
  const int64_t q = 384;
  const int64_t kv = 1024;  // q rows that end at key kv
  EXPECT_EQ(Mask{}.pairs({kv - q, kv}, {0, kv}), q * kv - q * (q - 1) / 2);
  EXPECT_EQ(Mask{}.pairs({0, kv}, {0, kv}), kv * (kv + 1) / 2);
}

}  // namespace
}  // namespace distca
