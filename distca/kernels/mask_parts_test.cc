#include "distca/kernels/mask_parts.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "distca/kernels/attention_testing.h"

namespace distca::kernels {
namespace {

std::vector<KeyRange> ranges_of(const std::vector<Range>& positions) {
  std::vector<KeyRange> ranges;
  for (const Range& range : positions) {
    ranges.push_back({.tokens = range.size(), .position = range.begin});
  }
  return ranges;
}

std::vector<Mask> masks() {
  std::vector<Mask> all;
  for (const bool causal : {true, false}) {
    for (const int64_t left : {-1, 0, 3, 17, 200}) {
      for (const int64_t right : {-1, 0, 5, 200}) {
        all.push_back({.causal = causal, .window_left = left, .window_right = right});
      }
    }
  }
  return all;
}

TEST(MaskBlocksTest, every_visible_pair_lies_in_exactly_one_block) {
  const std::vector<std::vector<Range>> key_lists = {{{0, 60}},
                                                     {{0, 13}, {13, 20}, {20, 41}},
                                                     {{30, 60}, {0, 10}},
                                                     {{45, 46}},
                                                     {{0, 0}, {50, 90}}};
  for (const Mask& mask : masks()) {
    for (const Range& queries : {Range{0, 60}, Range{20, 50}, Range{7, 8}, Range{55, 80}}) {
      for (const auto& keys : key_lists) {
        const auto ranges = ranges_of(keys);
        std::map<std::pair<int64_t, int64_t>, int> seen;
        for (const MaskPart& block : cut_mask(mask, queries, ranges, 8)) {
          ASSERT_TRUE(queries.contains(block.queries));
          ASSERT_TRUE(keys[block.range].contains(block.keys));
          ASSERT_FALSE(block.queries.empty() || block.keys.empty());
          if (block.kind == MaskPartKind::kCausal) {
            ASSERT_EQ(block.queries.size(), block.keys.size());
          }
          for (int64_t i = block.queries.begin; i < block.queries.end; ++i) {
            for (int64_t j = block.keys.begin; j < block.keys.end; ++j) {
              const bool in_block = block.kind == MaskPartKind::kFull ||
                                    (block.kind == MaskPartKind::kCausal
                                         ? j - block.keys.begin <= i - block.queries.begin
                                         : testing::sees(mask, i, j));
              if (in_block) ++seen[{i, j}];
            }
          }
        }
        for (const Range& range : keys) {
          for (int64_t i = queries.begin; i < queries.end; ++i) {
            for (int64_t j = range.begin; j < range.end; ++j) {
              ASSERT_EQ(seen[std::pair(i, j)], testing::sees(mask, i, j) ? 1 : 0)
                  << "query " << i << " key " << j << " causal " << mask.causal << " window "
                  << mask.window_left << ", " << mask.window_right;
            }
          }
        }
      }
    }
  }
}

TEST(MaskBlocksTest, a_whole_causal_document_is_one_block) {
  const auto blocks = cut_mask({}, {0, 1000}, ranges_of({{0, 1000}}), 128);
  ASSERT_EQ(blocks.size(), 1U);
  EXPECT_EQ(blocks[0].kind, MaskPartKind::kCausal);
  EXPECT_EQ(blocks[0].queries, (Range{0, 1000}));
}

TEST(MaskBlocksTest, keys_before_the_queries_are_one_full_block) {
  const auto blocks = cut_mask({}, {300, 400}, ranges_of({{0, 400}}), 128);
  ASSERT_EQ(blocks.size(), 2U);
  EXPECT_EQ(blocks[0].kind, MaskPartKind::kFull);
  EXPECT_EQ(blocks[0].keys, (Range{0, 300}));
  EXPECT_EQ(blocks[1].kind, MaskPartKind::kCausal);
}

TEST(MaskBlocksTest, a_window_longer_than_the_document_cuts_nothing) {
  const Mask mask{.causal = true, .window_left = 1000};
  EXPECT_EQ(cut_mask(mask, {0, 1000}, ranges_of({{0, 1000}}), 128).size(), 1U);
}

TEST(MaskBlocksTest, the_largest_window_does_not_overflow) {
  const int64_t huge = std::numeric_limits<int64_t>::max();
  const Mask mask{.causal = false, .window_left = huge, .window_right = huge};
  EXPECT_EQ(visible_keys(mask, 10, {3, 20}), (Range{3, 20}));
}

TEST(MaskBlocksTest, visible_keys_follow_the_mask) {
  EXPECT_EQ(visible_keys({.causal = true}, 10, {0, 20}), (Range{0, 11}));
  EXPECT_EQ(visible_keys({.causal = true, .window_left = 4}, 10, {0, 20}), (Range{6, 11}));
  EXPECT_EQ(visible_keys({.causal = false, .window_right = 4}, 10, {0, 20}), (Range{0, 15}));
  EXPECT_TRUE(visible_keys({.causal = true}, 10, {11, 20}).empty());
}

}  // namespace
}  // namespace distca::kernels
