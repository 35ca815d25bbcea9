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
  EXPECT_THAT(run.stage_ranks(5), ElementsAre(4, 5));
  EXPECT_EQ(run.first_replica(3), 2);
  EXPECT_EQ(run.describe(), "6 workers = 3 stages (layers 0-1, 2-5, 6) x 2 replicas");
  EXPECT_EQ(run_grid(config_of(1), 6).describe(), "6 workers");
}

TEST(run_grid, the_ranks_of_a_server_are_neighbours) {
  Config config = config_of(2, "3,4");
  config.servers.dedicated = config.parallel.tensor_model_parallel_size = 3;
  RunGrid run = run_grid(config, 12);
  EXPECT_EQ(run.grid, (Grid{.stages = 2, .replicas = 2, .dedicated = 1}));
  EXPECT_EQ(run.num_workers(), 12);
  EXPECT_EQ(run.num_ranks(), 15);
  EXPECT_EQ(run.stage_of(10),
            (Stage{.index = 1, .count = 2, .layers = {3, 7}, .tensor = {.size = 3, .index = 1}}));
  EXPECT_THAT(run.stage_ranks(10), ElementsAre(6, 7, 8, 9, 10, 11));
  EXPECT_EQ(run.first_replica(10), 7);
  EXPECT_EQ(run.named("rank 10, rank 14"),
            "rank 10 (stage 1, replica 1, tensor 1), rank 14 (dedicated server, tensor 2)");
  EXPECT_EQ(run.describe(), "12 workers = 2 stages (layers 0-2, 3-6) x 2 replicas x 3 tensor");
  EXPECT_EQ(run.describe_dedicated(), "1 dedicated server of 3 ranks");
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

/// The words of the refusal.
template <typename Work>
std::string refusal(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.what();
  }
  return "not refused";
}

TEST(run_grid, workers_that_cannot_be_divided_are_refused) {
  EXPECT_THAT(refusal([] { run_grid(config_of(2), 3); }),
              ::testing::HasSubstr("3 workers cannot be divided"));
  Config config = config_of(2);
  config.parallel.tensor_model_parallel_size = 2;
  EXPECT_EQ(refusal([&] { run_grid(config, 6); }),
            "parallel.tensor_model_parallel_size = 2 with parallel.pipeline_model_parallel_size = "
            "2: 6 workers cannot be divided; start a multiple of 4");
}

TEST(run_grid, tensor_parallelism_that_cannot_be_is_refused_by_name) {
  const auto refusal_of = [](std::vector<std::string> words) {
    words.emplace_back("parallel.tensor_model_parallel_size=4");
    return refusal([&] { load_config("", words); });
  };
  const std::string begin = "parallel.tensor_model_parallel_size = 4 with ";
  for (const auto& [words, named] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"parallel.sequence_parallel=false"}, "parallel.sequence_parallel = false: "},
           {{"model.num_attention_heads=6"}, "model.num_attention_heads = 6: "},
           {{"model.num_attention_heads=24", "model.num_key_value_heads=3"},
            "model.num_key_value_heads = 3: "},
           {{"model.intermediate_size=706"}, "model.intermediate_size = 706: "},
           {{"model.vocab_size=3"}, "model.vocab_size = 3: "},
           {{"servers.dedicated=2"}, "servers.dedicated = 2: "},
           {{"cluster.ranks_per_node=6"}, "cluster.ranks_per_node = 6: "},
           {{"servers.reweight=true", "train.deterministic=false"}, "servers.reweight = true: "},
           {{"plan.tolerance=auto", "train.deterministic=false"}, "plan.tolerance = auto: "}})
    EXPECT_THAT(refusal_of(words), ::testing::StartsWith(begin + named));
  // Fewer key/value heads than ranks are shared, and the rest is as with one rank.
  for (const std::string word : {"model.num_key_value_heads=1", "model.num_key_value_heads=4",
                                 "servers.dedicated=8", "plan.tolerance=auto"})
    EXPECT_EQ(refusal_of({word}), "not refused") << word;
  EXPECT_EQ(refusal([] { load_config("", {"parallel.sequence_parallel=false"}); }), "not refused");
}

}  // namespace
}  // namespace distca
