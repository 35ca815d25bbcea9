#include "bench/attention_rows.h"

#include <gtest/gtest.h>

#include <set>

#include "distca/base/error.h"

namespace distca::bench {
namespace {

using kernels::Isa;

TEST(AttentionRows, have_different_names) {
  std::set<std::string> names;
  const std::vector<RowSpec> rows = all_rows();
  for (const RowSpec& row : rows) names.insert(row.name());
  EXPECT_EQ(names.size(), rows.size());
}

TEST(AttentionRows, are_selected_by_whole_words_of_their_names) {
  const std::vector<RowSpec> rows = selected_rows(all_rows(), "512 lengths  d64 8:8 fp32");
  ASSERT_EQ(rows.size(), 1);
  EXPECT_EQ(rows[0].name(), "lengths fp32 d64 8:8 512");
  EXPECT_EQ(rows[0].heads.used(), 8);
  EXPECT_EQ(selected_rows(all_rows(), "").size(), all_rows().size());
  EXPECT_THROW(selected_rows(all_rows(), "lengths 51"), Error);
}

TEST(AttentionRows, long_ones_compute_whole_groups_of_the_first_heads) {
  for (const RowSpec& row : all_rows()) {
    if (row.kind != RowKind::kLength) continue;
    EXPECT_GE(row.heads.kv_used, 1);
    EXPECT_LE(row.heads.kv_used, row.heads.kv_heads);
    EXPECT_EQ(row.heads.used(), row.heads.kv_used * row.heads.group());
    EXPECT_TRUE(row.length > 1024 || row.heads.used() == 8) << row.name();
  }
}

TEST(AttentionRows, shards_have_the_work_of_one_sequence_at_contexts_about_as_long) {
  const double wanted = 8192.0 * 8193 / 2;
  for (const int64_t queries : kShardSizes) {
    double pairs = 0;
    for (const QueryRun& shard : shards_of(queries)) {
      EXPECT_EQ(shard.tokens, queries);
      EXPECT_EQ(shard.position % 128, 0);
      const int64_t context = shard.position + shard.tokens;
      EXPECT_NEAR(static_cast<double>(context), 8192, 4 * 128 + 128);
      const auto n = static_cast<double>(queries);
      pairs += n * static_cast<double>(shard.position) + n * (n + 1) / 2;
    }
    EXPECT_NEAR(pairs / wanted, 1, 0.1) << queries;
  }
}

TEST(AttentionProblem, counts_the_pairs_that_the_mask_allows) {
  const Problem problem(ScalarType::kFloat32, {4, 2, 1}, 8, {{0, 3}, {10, 2}});
  // 1 + 2 + 3 pairs, then 11 + 12; two query heads of four.
  EXPECT_DOUBLE_EQ(problem.flops(Pass::kForward), 4.0 * 8 * (6 + 23) * 2);
  EXPECT_DOUBLE_EQ(problem.flops(Pass::kBackward), 10.0 * 8 * (6 + 23) * 2);
  EXPECT_EQ(problem.shape().num_heads, 2);
  EXPECT_EQ(problem.shape().num_kv_heads, 1);
}

}  // namespace
}  // namespace distca::bench
