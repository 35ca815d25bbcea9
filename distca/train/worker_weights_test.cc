#include "distca/train/worker_weights.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "distca/base/error.h"
#include "distca/model/weights_file.h"
#include "distca/train/run_faults.h"
#include "distca/train/same_weights.h"
#include "distca/train/stage_weights.h"
#include "distca/train/worker_weights_testing.h"

namespace distca {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;
using testing::Way;

TEST(StageWeights, every_element_is_kept_by_one_rank_of_all_that_hold_no_copies) {
  for (const Way& way :
       {Way{}, Way{.stages = 4}, Way{.stages = 2, .layers = "1,3"}, Way{.stages = 3, .tied = true},
        Way{.tensor = 2}, Way{.stages = 2, .replicas = 2, .tensor = 4, .tied = true}}) {
    SCOPED_TRACE(way.name());
    const Config config = testing::config_of(way, "unused");
    const RunGrid run = testing::grid_of(config, way);
    const std::vector<Weight> table = weight_table(config.model);
    std::vector<at::Tensor> keepers;
    for (const Weight& weight : table) keepers.push_back(at::zeros(weight.shape));
    for (int rank = 0; rank < run.num_workers(); ++rank) {
      if (run.first_replica(rank) != rank) continue;
      const Stage stage = run.stage_of(rank);
      const std::vector<Weight> held = weight_table(config.model, stage);
      for (const KeptWeight& kept : kept_weights(config.model, stage)) {
        EXPECT_EQ(held[kept.in_stage].name, table[kept.in_model].name);
        part_of(held[kept.in_stage].box, keepers[kept.in_model]).add_(1);
      }
    }
    for (size_t i = 0; i < table.size(); ++i)
      EXPECT_TRUE(at::equal(keepers[i], at::ones(table[i].shape))) << table[i].name;
  }
}

TEST(WorkerWeights, of_all_stages_come_to_rank_0_as_the_main_params_are) {
  const std::vector<Way> ways = {
      {},
      {.replicas = 3, .zero = true},
      {.stages = 2, .replicas = 2},
      {.stages = 2, .replicas = 2, .zero = true, .dedicated = 1},
      {.stages = 4},
      {.stages = 2, .replicas = 2, .tied = true},
      {.stages = 3, .replicas = 2, .zero = true, .tied = true},
      {.stages = 2, .replicas = 3, .zero = true, .layers = "1,3"},
      {.tensor = 2},
      {.replicas = 2, .tensor = 2},
      {.replicas = 2, .tensor = 4, .zero = true},
      {.stages = 2, .replicas = 2, .tensor = 2, .zero = true, .tied = true}};
  for (const char* const dtype : {"float32", "bfloat16", "float64"}) {
    for (const Way& way : ways) {
      SCOPED_TRACE(fmt::format("{} {}", way.name(), dtype));
      const Config config = testing::config_of(way, "unused", dtype);
      testing::on_ranks(
          config, way, [&](Communicator& comm, const RunGrid& run, WorkerWeights* weights) {
            if (weights == nullptr) {
              EXPECT_TRUE(gather_trained_weights(comm, nullptr, run, config.model).empty());
              return;
            }
            EXPECT_EQ(update_of(weights).all_stages != nullptr, run.divides_model());
            EXPECT_EQ(weights->all_workers.size(), way.workers());
            EXPECT_EQ(weights->workers.size(), way.replicas * way.tensor);
            testing::set_known_state(*weights);
            const std::vector<at::Tensor> all =
                gather_trained_weights(comm, weights, run, config.model);
            EXPECT_EQ(all.empty(), comm.rank() > 0);
            if (all.empty()) return;
            const std::vector<StoredTensor> stored = stored_weights(config.model);
            ASSERT_EQ(all.size(), stored.size());
            for (size_t i = 0; i < stored.size(); ++i) {
              EXPECT_TRUE(at::equal(all[i], testing::known_state(stored[i], StatePart::kWeight)))
                  << stored[i].name;
            }
          });
    }
  }
}

TEST(WorkerWeights, ranks_meet_after_every_round_of_the_gathering) {
  const Way way{.stages = 2, .replicas = 2};
  const Config config = testing::config_of(way, "unused");
  std::array<int, 4> met{};
  testing::on_ranks(
      config, way, [&](Communicator& comm, const RunGrid& run, WorkerWeights* weights) {
        const std::vector<at::Tensor> mine =
            weights->optimizer.gather_main_params(weights->all_workers);
        if (mine.empty()) return;
        gather_parts(weights->all_workers, run, config.model, mine, [&] { ++met[comm.rank()]; });
      });
  EXPECT_GT(met[0], 1);
  EXPECT_THAT(met, ElementsAre(met[0], 0, met[0], 0));
}

TEST(WorkerWeights, a_replica_that_has_drifted_is_named_with_the_one_it_was_compared_with) {
  const Way way{.stages = 2, .replicas = 2};
  const Config config = testing::config_of(way, "runs/mine");
  testing::on_ranks(config, way,
                    [&](Communicator& comm, const RunGrid& run, WorkerWeights* weights) {
                      const auto others = [&] {
                        return ranks_with_other_weights(weights->all_workers, run, config.model,
                                                        weights->model.parameters(), "test");
                      };
                      EXPECT_TRUE(others().empty()) << "stages are not compared";
                      at::Tensor last = weights->model.parameters().back().detach();
                      if (comm.rank() == 3) last.view({-1})[7] += 1e-3;
                      EXPECT_THAT(others().replicas, ElementsAre(3)) << "on rank " << comm.rank();
                    });
  const RunGrid run = run_grid(config, way.workers());
  const auto message = [](const auto& check) -> std::string {
    try {
      check();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(
      message([&] { check_same_start({.replicas = {3}, .copies = {}}, run, /*resumed=*/true); }),
      "rank 3 (stage 1, replica 1) read other initial weights than rank 2 (stage 1, replica "
      "0): start the same version of distca on all ranks");
  EXPECT_THAT(message([&] { check_same_end({.replicas = {3}, .copies = {}}, run, config); }),
              StartsWith("rank 3 (stage 1, replica 1) ended with other weights than rank 2 (stage "
                         "1, replica 0): from some step on each trained a model of its own; what "
                         "the first replicas hold is saved in runs/mine, "));
  EXPECT_THAT(message([&] {
                check_same_end({.replicas = {1, 2}, .copies = {}}, RunGrid{.grid = {.replicas = 3}},
                               config);
              }),
              StartsWith("ranks 1, 2 ended with other weights than rank 0: from some step on each "
                         "trained a model of its own; rank 0's is saved in runs/mine, "));
  EXPECT_EQ(
      message([&] {
        check_same_start({.replicas = {}, .copies = {2, 3}}, run, /*resumed=*/false);
      }),
      "rank 2 (stage 1, replica 0), rank 3 (stage 1, replica 1) drew other initial weights of "
      "the tied embedding than rank 0 (stage 0, replica 0): start the same version of distca "
      "on all ranks");
  EXPECT_EQ(message([&] { check_same_end({}, run, config); }), "");
}

}  // namespace
}  // namespace distca
