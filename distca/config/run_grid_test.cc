#include "distca/config/run_grid.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "distca/base/error.h"

namespace distca {
namespace {

using ::testing::ElementsAre;

Config config_of(int stages, const std::string& layers = "") {
  return load_config("", {"model.num_hidden_layers=7",
                          fmt::format("parallel.pipeline_model_parallel_size={}", stages),
                          "parallel.pipeline_layers=" + layers, "servers.dedicated=1"});
}

TEST(run_grid, workers_are_divided_over_the_stages_and_dedicated_servers_come_last) {
  const RunGrid run = run_grid(config_of(3, "2,4,1"), 6);
  EXPECT_EQ(run.grid, (Grid{.stages = 3, .replicas = 2, .dedicated = 1}));
  EXPECT_THAT(run.layers, ElementsAre(Range{0, 2}, Range{2, 6}, Range{6, 7}));
  EXPECT_EQ(run.stage_of(3), (Stage{.index = 1, .count = 3, .layers = {2, 6}}));
  EXPECT_TRUE(run.stage_of(6).layers.empty());
  EXPECT_THAT(run.replicas_of(5), ElementsAre(4, 5));
  EXPECT_EQ(run.first_replica(3), 2);
  EXPECT_EQ(run.describe(), "6 workers = 3 stages (layers 0-1, 2-5, 6) x 2 replicas");
  EXPECT_EQ(run_grid(config_of(1), 6).describe(), "6 workers");
}

TEST(run_grid, the_ranks_of_a_server_are_neighbours) {
  RunGrid run = run_grid(config_of(2, "3,4"), 4);
  run.tensor = 3;
  EXPECT_EQ(run.num_workers(), 12);
  EXPECT_EQ(run.num_ranks(), 15);
  EXPECT_EQ(run.stage_of(10),
            (Stage{.index = 1, .count = 2, .layers = {3, 7}, .tensor = {.size = 3, .index = 1}}));
  EXPECT_THAT(run.replicas_of(10), ElementsAre(7, 10));
  EXPECT_EQ(run.first_replica(10), 7);
  EXPECT_EQ(run.named("rank 10, rank 14"),
            "rank 10 (stage 1, replica 1, tensor 1), rank 14 (dedicated server, tensor 2)");
  EXPECT_EQ(run.describe(), "12 workers = 2 stages (layers 0-2, 3-6) x 2 replicas x 3 tensor");
  run = {.grid = {.replicas = 2}, .layers = {{0, 7}}, .tensor = 2};
  EXPECT_EQ(run.named(run.named("rank 3")), "rank 3 (replica 1, tensor 1)");
  EXPECT_EQ(run.describe(), "4 workers = 2 replicas x 2 tensor");
}

TEST(run_grid, ranks_in_a_text_are_named_once) {
  const RunGrid run = run_grid(config_of(2), 4);
  EXPECT_EQ(run.named("step 3: rank 1 awaits rank 2; ranks 0, 1, rank 12, rank 4"),
            "step 3: rank 1 (stage 0, replica 1) awaits rank 2 (stage 1, replica 0); ranks 0, 1, "
            "rank 12, rank 4 (dedicated server)");
  EXPECT_EQ(run.named(run.named("rank 3")), "rank 3 (stage 1, replica 1)");
  EXPECT_EQ(run_grid(config_of(1), 4).named("rank 3"), "rank 3");
}

TEST(run_grid, workers_that_cannot_be_divided_are_refused) {
  try {
    run_grid(config_of(2), 3);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("3 workers cannot be divided"));
  }
}

}  // namespace
}  // namespace distca
