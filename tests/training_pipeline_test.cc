// `distca train` from end to end with the layers divided over stages: every grid trains the same
// model, and says what it is.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/run_command.h"
#include "tests/training_testing.h"

namespace distca::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Words stages(int count) { return {fmt::format("parallel.pipeline_model_parallel_size={}", count)}; }

class PipelineTrainingTest : public TrainingTest {
 protected:
  /// Four layers and three micro-batches of two nano-batches, of which the last lacks one.
  Training train_with(const std::string& name, const Words& more) const {
    return train(name, joined({"model.num_hidden_layers=4", "batch.nano_batches=5",
                               "batch.nano_batch_tokens=256", "batch.max_document_tokens=256"},
                              more));
  }
};

TEST_F(PipelineTrainingTest, every_grid_and_order_trains_the_same_model) {
  const Words threads = {"model.dtype=float64", "comm.backend=threads"};
  const auto of = [&](const Words& more) { return joined(threads, more); };
  const Training one = train_with("one", of({"--workers", "1"}));
  for (const auto& [name, more] : std::map<std::string, Words>{
           {"2x1", joined(stages(2), {"--workers", "2"})},
           {"2x1_1f1b", joined(stages(2), {"--workers", "2", "parallel.pipeline_schedule=1f1b"})},
           {"2x2_zero", joined(stages(2), {"--workers", "4", "train.recompute=full",
                                           "parallel.use_distributed_optimizer=true"})},
           {"2x2_1f1b", joined(stages(2), {"--workers", "4", "parallel.pipeline_schedule=1f1b",
                                           "train.overlap=none"})},
           {"3x1_uneven", joined(stages(3), {"--workers", "3", "parallel.pipeline_layers=1,2,1",
                                             "train.overlap=within"})},
           {"4x1_spread", joined(stages(4), {"--workers", "4", "plan.fill_ticks=spread",
                                             "parallel.outstanding_weight_gradients=2"})},
           {"4x1_none_wait",
            joined(stages(4), {"--workers", "4", "parallel.outstanding_weight_gradients=0"})},
           {"3x1_mixed", joined(stages(3), {"--workers", "3", "parallel.pipeline_schedule=mixed",
                                            "parallel.outstanding_weight_gradients=2"})},
           {"2x1_served",
            joined(stages(2), {"--workers", "2", "servers.dedicated=1", "plan.scheduler=greedy"})},
           {"2x1_served_alone",
            joined(stages(2), {"--workers", "2", "servers.dedicated=2", "servers.in_place=false"})},
           {"2x1_shares", joined(stages(2), {"--workers", "2", "servers.dedicated=1",
                                             "servers.capacity=3,1,2", "plan.profile=h200"})}}) {
    const Training many = train_with(name, of(more));
    EXPECT_GT(many.bytes_sent, 0) << name;
    expect_same_result(many, one, name);
  }
}

TEST_F(PipelineTrainingTest, tied_embeddings_train_the_same_model_and_are_saved_once) {
  const Words tied = {"model.dtype=float64", "comm.backend=threads",
                      "model.tie_word_embeddings=true"};
  const Training one = train_with("one", joined(tied, {"--workers", "1"}));
  for (const bool zero : {false, true}) {
    const std::string name = zero ? "zero" : "plain";
    const Training many = train_with(
        name, joined(tied, joined(stages(2),
                                  {"--workers", "4",
                                   fmt::format("parallel.use_distributed_optimizer={}", zero)})));
    expect_same_result(many, one, name);
    EXPECT_EQ(many.weights.size(), one.weights.size()) << name;
  }
}

TEST_F(PipelineTrainingTest, the_first_loss_has_the_same_bits_for_every_number_of_stages) {
  for (const int replicas : {1, 2}) {
    std::optional<double> first;
    for (const int count : {1, 2, 3, 4}) {
      const std::string name = fmt::format("{}x{}", count, replicas);
      const Training run =
          train_with(name, joined(stages(count), {"--workers", std::to_string(count * replicas),
                                                  "comm.backend=threads", "train.steps=1"}));
      if (!first) first = run.losses.at(0);
      EXPECT_EQ(run.losses.at(0), *first) << name;
    }
  }
}

TEST_F(PipelineTrainingTest, processes_give_the_bits_of_threads_and_so_does_a_second_run) {
  const Words grid = joined(stages(2), {"--workers", "4"});
  const Training threads = train_with("threads", joined(grid, {"comm.backend=threads"}));
  EXPECT_EQ(threads.losses.size(), 6u);
  EXPECT_EQ(threads.validation.size(), 2u);
  expect_same_bits(train_with("processes", grid), threads);
  expect_same_bits(train_with("again", grid), threads);
}

TEST_F(PipelineTrainingTest, the_grid_is_said_and_metrics_tell_what_travels_between_nodes) {
  const auto run = [&](const std::string& name, const Words& more) {
    const Words all = joined({"model.num_hidden_layers=4", "batch.nano_batches=4",
                              "comm.backend=threads", "train.steps=2", "--workers", "4"},
                             joined(stages(2), more));
    return succeed(arguments(all, name)).out;
  };
  EXPECT_THAT(run("nodes", {"cluster.ranks_per_node=2", "servers.dedicated=1"}),
              AllOf(HasSubstr("4 workers = 2 stages (layers 0-1, 2-3) x 2 replicas, 1 dedicated "
                              "server (threads)"),
                    HasSubstr("pipeline schedule")));
  for (const Json& line : metrics("nodes")) {
    const int64_t sent = line.at("bytes_sent"), between = line.at("bytes_between_nodes"),
                  inside = line.at("bytes_inside_nodes");
    EXPECT_EQ(between + inside, sent);
    EXPECT_GT(inside, 0);
    EXPECT_GT(between, 0);
    EXPECT_EQ(line.at("nano_batches_redispatched"), 4);
    // Two micro-batches on two stages: a third of the ticks are idle for each stage.
    EXPECT_GT(line.at("imbalance_before").get<double>(), 1.2);
    EXPECT_LT(line.at("imbalance_after").get<double>(), line.at("imbalance_before").get<double>());
  }
  run("alone", {"cluster.ranks_per_node=1"});
  for (const Json& line : metrics("alone")) EXPECT_EQ(line.at("bytes_inside_nodes"), 0);
  run("one_node", {"cluster.ranks_per_node=8"});
  for (const Json& line : metrics("one_node")) EXPECT_EQ(line.at("bytes_between_nodes"), 0);
}

}  // namespace
}  // namespace distca::testing
