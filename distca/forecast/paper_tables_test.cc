#include "distca/forecast/paper_tables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "distca/base/error.h"
#include "distca/cost/stage_layers.h"

namespace distca {
namespace {

/// Mostly short documents, and one of 64 as long as any.
PaperStudy small_study() {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 4096; ++i) lengths.push_back(i % 64 == 0 ? 120'000 : 500 + 37 * (i % 97));
  return {.machine = machine_by_name("h200"),
          .lengths = {{SampleKind::kPretrain, lengths}, {SampleKind::kProlong, lengths}}};
}

PaperRow row_of(PaperTable table, const std::string& name) {
  for (const PaperRow& row : paper_rows(table)) {
    if (row.name() == name) return row;
  }
  ADD_FAILURE() << "no row " << name;
  return {};
}

TEST(PaperRows, are_those_of_the_tables) {
  for (const PaperTable table : {PaperTable::kThreeDimensions, PaperTable::kFourDimensions}) {
    std::set<std::string> names;
    for (const PaperRow& row : paper_rows(table)) {
      names.insert(row.name());
      EXPECT_EQ(paper_config(row).batch.nano_batch_tokens, row.tokens());
    }
    EXPECT_EQ(names.size(), 36U);
  }
  EXPECT_EQ(paper_rows(PaperTable::kBeyond).size(), 12U);
  const LlamaConfig model =
      paper_config(row_of(PaperTable::kBeyond, "405B 1024K prolong 1024 GPUs")).model;
  EXPECT_NEAR(1e-9 * static_cast<double>(layer_products(model.shape()) * model.num_hidden_layers),
              405, 5)
      << "without embedding and head";
  const PaperRow row = row_of(PaperTable::kFourDimensions, "34B 384K prolong 512 GPUs");
  EXPECT_EQ(row.sequences, 16);
  EXPECT_EQ(row.published.most, 1.25);
}

TEST(PaperTables, the_share_of_all_gathers_is_near_the_papers) {
  const Machine machine = machine_by_name("h200");
  for (const AllGatherPoint& point : {kAllGatherShares[0], kAllGatherShares[2]})
    EXPECT_NEAR(all_gather_share(point.nodes, machine), point.published, .03) << point.nodes;
}

TEST(PaperTables, settings_of_a_row_are_within_their_bounds) {
  const PaperResult result =
      play_row(row_of(PaperTable::kThreeDimensions, "8B 512K pretrain 64 GPUs"), small_study());
  ASSERT_TRUE(result.wlb && result.original && result.ours);
  EXPECT_FALSE(result.wlb_alone);
  EXPECT_GT(result.wlb->group, 1) << "a document of 512K is too much for one node";
  EXPECT_GT(result.speedup(result.original), 1);
  for (const std::optional<PaperBest>& best : {result.wlb, result.original, result.ours}) {
    EXPECT_GT(best->seconds, best->busy_s);
    // Products and pairs are equal; short shards are less efficient.
    EXPECT_NEAR(best->busy_s / result.ours->busy_s, 1, .03);
  }
  EXPECT_EQ(result.best_against_best(), result.speedup(result.ours));
  EXPECT_EQ(result.speedup_of_stages(1), result.speedup(result.original));
  EXPECT_EQ(result.move.has_value(), result.place() != 0);
  if (result.move) {
    EXPECT_EQ(result.move->ratio > result.speedup(result.original), result.place() < 0);
  }
}

TEST(PaperTables, one_stream_takes_longer_and_free_bytes_do_not) {
  const OneStreamCost cost = one_stream_cost(
      row_of(PaperTable::kThreeDimensions, "8B 128K pretrain 64 GPUs"), small_study());
  EXPECT_GT(cost.longer, .05);
  EXPECT_LT(cost.longer, .5);
  EXPECT_GE(cost.bytes_cost, 0);
  EXPECT_LT(cost.bytes_cost, cost.longer);
  ASSERT_EQ(cost.move.has_value(), cost.place() != 0);
  if (cost.move) {
    EXPECT_EQ(cost.move->ratio > 1 + cost.longer, cost.place() < 0);
    EXPECT_EQ(cost.move->number, MachineNumber::kBetweenGbPerS) << "what one stream does not hide";
  }
}

TEST(PaperTables, one_stream_costs_what_the_paper_says_from_10_to_17_percent) {
  EXPECT_EQ(OneStreamCost{.longer = .094}.place(), -1);
  EXPECT_EQ(OneStreamCost{.longer = .096}.place(), 0) << "shown as 10 %";
  EXPECT_EQ(OneStreamCost{.longer = .174}.place(), 0);
  EXPECT_EQ(OneStreamCost{.longer = .176}.place(), 1);
}

TEST(PaperTables, a_place_is_by_hundredths) {
  PaperResult result{.row = {.published = {1.07, 1.20}},
                     .wlb = PaperBest{.seconds = 1.2},
                     .original = PaperBest{.seconds = 1}};
  EXPECT_EQ(result.place(), 0);
  result.original->seconds = 1.2 / 1.066;  // shown as 1.07
  EXPECT_EQ(result.place(), 0);
  result.original->seconds = 1.2 / 1.064;
  EXPECT_EQ(result.place(), -1);
  result.original->seconds = 1.2 / 1.206;
  EXPECT_EQ(result.place(), 1);
  result.original.reset();
  EXPECT_FALSE(result.place());
  result.original = result.wlb;
  result.row.published = {};
  EXPECT_FALSE(result.place()) << "nothing is published";
}

TEST(PaperTables, no_configuration_can_ask_for_its_schedulers) {
  for (const char* word :
       {"plan.scheduler=greedy-original", "plan.scheduler=all-gather", "plan.layout=given-groups"})
    EXPECT_THROW(load_config({}, {word}), Error) << word;
}

}  // namespace
}  // namespace distca
