// `distca train` from end to end with ranks that divide the matrices of layers: every grid trains
// the same model, and what it writes goes on in any other.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/checkpoint_runs.h"
#include "tests/training_testing.h"

namespace distca::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// A run on stages x replicas x ranks that divide layers.
struct TensorGrid {
  int tensor = 2, stages = 1, replicas = 1;
  Words more = {};

  Words words() const {
    return joined({fmt::format("parallel.tensor_model_parallel_size={}", tensor),
                   fmt::format("parallel.pipeline_model_parallel_size={}", stages), "--workers",
                   std::to_string(tensor * stages * replicas)},
                  more);
  }
};

class TensorTrainingTest : public CheckpointTest {
 protected:
  /// Four layers and three nano-batches.
  static Words joined_words(const Words& more) {
    return joined({"model.num_hidden_layers=4", "batch.nano_batches=3",
                   "batch.nano_batch_tokens=256", "batch.max_document_tokens=256", "train.steps=4",
                   "train.validation_every=2", "model.vocab_size=257"},
                  more);
  }
  Training train_with(const std::string& name, const Words& more) const {
    return train(name, joined_words(more));
  }
  /// Trains each grid in fp64 and expects what one worker learns.
  void expect_same(const Words& model, const std::map<std::string, TensorGrid>& grids) const {
    const Words all = joined({"model.dtype=float64", "comm.backend=threads"}, model);
    const Training one = train_with("one", joined(all, {"--workers", "1"}));
    for (const auto& [name, grid] : grids)
      expect_same_result(train_with(name, joined(all, grid.words())), one, name);
  }
};

const std::string kZero = "parallel.use_distributed_optimizer=true";

TEST_F(TensorTrainingTest, every_grid_trains_the_same_model) {
  expect_same(
      {},
      {{"2", {}},
       {"4_few_kv_heads", {.tensor = 4}},
       {"2x2_zero", {.replicas = 2, .more = {kZero, "train.recompute=selective"}}},
       {"2x2x1", {.stages = 2, .more = {"parallel.outstanding_weight_gradients=2"}}},
       {"2x2x2",
        {.stages = 2,
         .replicas = 2,
         .more = {kZero, "train.recompute=full", "exchange.keys=auto"}}},
       {"mixed", {.stages = 2, .more = {"parallel.pipeline_schedule=mixed"}}},
       {"1f1b", {.stages = 2, .more = {"parallel.pipeline_schedule=1f1b", "train.overlap=none"}}},
       {"within", {.replicas = 2, .more = {"train.overlap=within", "exchange.keys=redispatch"}}},
       {"served", {.more = {"servers.dedicated=2", "plan.scheduler=greedy"}}},
       {"served_alone", {.more = {"servers.dedicated=4", "servers.in_place=false"}}},
       {"shares",
        {.replicas = 2,
         .more = {"servers.dedicated=2", "servers.capacity=3,1,2", "plan.profile=h200",
                  "cluster.ranks_per_node=2"}}}});
}

TEST_F(TensorTrainingTest, windows_that_differ_by_layer_have_plans_of_their_own) {
  expect_same(
      {"model.sliding_window=40",
       "model.layer_types=full_attention,sliding_attention,sliding_attention,full_attention"},
      {{"2x2", {.replicas = 2}}, {"2_none", {.more = {"train.overlap=none"}}}});
}

TEST_F(TensorTrainingTest, tied_embeddings_and_norms_of_heads_train_the_same_model) {
  expect_same({"model.model_type=qwen3", "model.tie_word_embeddings=true"},
              {{"2x2", {.stages = 2, .more = {kZero}}},
               // The two halves of 257 rows have 2 buckets and 1.
               {"2x2_buckets", {.stages = 2, .more = {"parallel.bucket_mb=0.01"}}},
               {"4", {.tensor = 4}}});
}

/// Documents are long enough that a part of core attention has some of a task's queries.
TEST_F(TensorTrainingTest, processes_give_the_bits_of_threads_and_so_does_a_second_run) {
  const Words grid = joined(TensorGrid{.replicas = 2}.words(),
                            {"batch.nano_batch_tokens=4096", "batch.max_document_tokens=4096",
                             "model.max_position_embeddings=4096"});
  const Training threads = train_with("threads", joined(grid, {"comm.backend=threads"}));
  EXPECT_EQ(threads.validation.size(), 2u);
  expect_same_bits(train_with("processes", grid), threads);
  expect_same_bits(train_with("again", grid), threads);
}

TEST_F(TensorTrainingTest, the_grid_is_said_and_what_ranks_of_a_server_send_stays_on_a_node) {
  const TensorGrid grid{.stages = 2, .replicas = 2, .more = {"servers.dedicated=2"}};
  const auto words = [&](int of_node) {
    return joined(grid.words(),
                  {"comm.backend=threads", fmt::format("cluster.ranks_per_node={}", of_node)});
  };
  EXPECT_THAT(succeed(arguments(joined_words(words(2)), "nodes")).out,
              HasSubstr("8 workers = 2 stages (layers 0-1, 2-3) x 2 replicas x 2 tensor, 1 "
                        "dedicated server of 2 ranks\n"));
  for (const Json& line : metrics("nodes")) {
    const int64_t inside = line.at("bytes_inside_nodes"), between = line.at("bytes_between_nodes");
    EXPECT_EQ(between + inside, line.at("bytes_sent").get<int64_t>());
    EXPECT_EQ(inside, line.at("bytes_tensor").get<int64_t>()) << "each server is a node";
    EXPECT_EQ(line.at("attention_s").size(), 10u);
    EXPECT_EQ(line.at("waited_s").size(), 10u);
  }
  train_with("one node", words(10));
  for (const Json& line : metrics("one node")) EXPECT_EQ(line.at("bytes_between_nodes"), 0);
}

TEST_F(TensorTrainingTest, a_checkpoint_of_any_grid_goes_on_in_any_other) {
  static constexpr int64_t kSteps = 6, kSaved = 3;
  const auto on = [](const TensorGrid& grid) {
    return joined_words(joined({"model.dtype=float64", "comm.backend=threads",
                                "checkpoint.every_steps=1", "checkpoint.keep_last=0",
                                "parallel.bucket_mb=0.02", fmt::format("train.steps={}", kSteps)},
                               grid.words()));
  };
  const TensorGrid eight{.stages = 2, .replicas = 2, .more = {kZero}}, four{.tensor = 4},
      three{.tensor = 1, .replicas = 3};
  const Training straight = train("eight", on(eight));
  const auto goes_on = [&](const std::string& from, const std::string& name, const TensorGrid& to) {
    succeed(arguments(joined(on(to), {"--resume", checkpoint(kSaved, from)}), name));
    const Training got = read_training(name);
    expect_near(got.losses, {straight.losses.begin() + kSaved, straight.losses.end()}, 1e-10, name);
    expect_near(got.norms, {straight.norms.begin() + kSaved, straight.norms.end()}, 1e-10, name);
    expect_near_state(checkpoint(kSteps, name), checkpoint(kSteps, "eight"));
  };
  goes_on("eight", "eight to three", three);
  goes_on("eight", "eight to four", four);
  train("three", on(three));
  goes_on("three", "three to eight", eight);
  train("four", on(four));
  goes_on("four", "four to eight", eight);
}

TEST_F(TensorTrainingTest, the_same_grid_goes_on_bit_for_bit) {
  const Words same = joined(TensorGrid{.stages = 2, .replicas = 2}.words(),
                            {"comm.backend=threads", "checkpoint.every_steps=2"});
  const Training straight = train_with("straight", same);
  for (const Words& way : {Words{}, Words{kZero}}) {
    const std::string name = way.empty() ? "again" : "zero";
    EXPECT_THAT(succeed(arguments(joined(joined_words(joined(same, way)),
                                         {"--resume", checkpoint(2, "straight")}),
                                  name))
                    .out,
                HasSubstr("\nit goes on bit for bit\n"));
    EXPECT_TRUE(read_training(name).weights == straight.weights) << name;
  }
}

TEST_F(TensorTrainingTest, a_model_of_hugging_face_comes_back_with_its_bytes) {
  train_with("model", {"--workers", "1"});
  const std::string from = "model.from=" + (folder_ / "model").string();
  const auto saved = [&](const std::string& name, const Words& more) {
    return train_with(name, joined({from, "train.steps=0", "comm.backend=threads"}, more)).weights;
  };
  const std::string one = saved("one", {"--workers", "1"});
  EXPECT_TRUE(saved("four", TensorGrid{.tensor = 4}.words()) == one);
  EXPECT_TRUE(saved("eight", TensorGrid{.stages = 2, .replicas = 2, .more = {kZero}}.words()) ==
              one);
}

TEST_F(TensorTrainingTest, a_plan_is_that_of_servers_and_a_program_that_of_a_rank) {
  const auto plan = [](const Words& more) {
    return succeed(joined({"plan", "--workload",
                           "distca/plan/testdata/workloads/pretrain_8x128k_0.json", "--workers",
                           "4", "parallel.tensor_model_parallel_size=2",
                           "model.num_hidden_layers=1", "batch.nano_batches=2"},
                          more))
        .out;
  };
  EXPECT_THAT(plan({}), AllOf(HasSubstr(" on 4 workers = 2 replicas x 2 tensor\n"),
                              HasSubstr("\na server is 2 ranks: ")));
  EXPECT_THAT(plan({"--program", "3"}),
              AllOf(::testing::StartsWith("Rank 3 of 4 (tensor 1), overlap ping-pong"),
                    HasSubstr(" gather_rows "), HasSubstr(" sum_rows ")));
}

TEST_F(TensorTrainingTest, verify_and_evaluate_take_such_grids) {
  const Words grid = TensorGrid{.stages = 2, .more = {"servers.dedicated=2"}}.words();
  Words words = arguments(joined_words(grid));
  words[0] = "verify";
  EXPECT_THAT(succeed(words).out, HasSubstr("verify: the same to 1e-10"));
  train_with("model", {"--workers", "1"});
  const auto evaluated = [&](const Words& more) {
    return Json::parse(succeed(joined({"evaluate", folder_ / "model", "--data", prefix_, "--json",
                                       "comm.backend=threads", "model.dtype=float64"},
                                      more))
                           .out);
  };
  const Json one = evaluated({}), many = evaluated(TensorGrid{.replicas = 2}.words());
  EXPECT_NEAR(many.at("loss").get<double>(), one.at("loss").get<double>(), 1e-10);
  EXPECT_EQ(many.at("targets"), one.at("targets"));
}

}  // namespace
}  // namespace distca::testing
