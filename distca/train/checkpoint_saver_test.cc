// Checkpoints that cross grids: what some stages and replicas have written, others read. Whole runs
// are in tests/resume_test.cc.

#include "distca/train/checkpoint_saver.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "distca/base/error.h"
#include "distca/batch/test_folder.h"
#include "distca/checkpoint/folder.h"
#include "distca/checkpoint/reader.h"
#include "distca/comm/aten_types.h"
#include "distca/comm/collectives.h"
#include "distca/comm/thread_group.h"
#include "distca/model/weights_file.h"
#include "distca/train/worker_weights_testing.h"

namespace distca {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using testing::Way;

constexpr int64_t kStep = 5;

RunFacts facts_of(const Config& config, const Way& way) {
  return {.config = config_texts(config),
          .machine = {{"number of workers", std::to_string(way.workers())}},
          .data = "some data"};
}

class CheckpointSaverTest : public FolderTest {
 protected:
  fs::path checkpoint(const std::string& name) const {
    return folder_ / name / "checkpoints" / fmt::format("step_{:06}", kStep);
  }

  /// Saves known state or, if there is a `from`, what that run's checkpoint holds.
  void save(const std::string& name, const Way& way, const std::string& dtype,
            const std::string& from = "") const {
    const Config config = testing::config_of(way, folder_ / name, dtype,
                                             {"checkpoint.every_steps=5", "train.steps=10"});
    testing::on_ranks(config, way,
                      [&](Communicator& comm, const RunGrid& run, WorkerWeights* weights) {
                        if (weights != nullptr) prepare(*weights, config, from);
                        CheckpointSaver saver(config, facts_of(config, way), "0123", 0, comm, run);
                        saver.begin(kStep, Json::object(), weights ? &weights->optimizer : nullptr,
                                    /*beside=*/true);
                        if (weights != nullptr) spoil(*weights);
                        EXPECT_TRUE(saver.finish());
                      });
  }

  /// Reads all of it: nothing is lost, and nothing is another weight's.
  void expect_known_state(const std::string& name) const {
    const CheckpointReader reader(checkpoint(name));
    EXPECT_EQ(reader.index().updates, testing::kKnownUpdates);
    for (size_t i = 0; i < reader.index().tensors.size(); ++i) {
      const StoredTensor& stored = reader.index().tensors[i];
      for (const StatePart part : kStateParts) {
        const at::Tensor got = at::empty(stored.shape, aten_type(stored.type));
        reader.read(static_cast<int64_t>(i), part,
                    {static_cast<std::byte*>(got.data_ptr()), static_cast<size_t>(got.nbytes())});
        EXPECT_TRUE(at::equal(got, testing::known_state(stored, part)))
            << stored.name << " " << part_name(part) << " of " << name;
      }
    }
  }

 private:
  void prepare(WorkerWeights& weights, const Config& config, const std::string& from) const {
    if (from.empty()) return testing::set_known_state(weights);
    load_checkpoint(CheckpointReader(checkpoint(from)), config.model, weights.model.stage(),
                    weights.optimizer);
    EXPECT_EQ(weights.optimizer.updates(), testing::kKnownUpdates);
    // Phases use them, also where another rank updates them.
    const std::vector<StoredTensor> stored = stored_weights(config.model, weights.model.stage());
    for (size_t i = 0; i < stored.size(); ++i) {
      const at::Tensor& parameter = weights.model.parameters()[i];
      const at::Tensor known = testing::known_state(stored[i], StatePart::kWeight);
      EXPECT_TRUE(at::equal(parameter, known.to(parameter.scalar_type()))) << stored[i].name;
    }
  }
  /// What the next step may do beside the writing.
  static void spoil(WorkerWeights& weights) {
    for (size_t i = 0; i < weights.model.weights().size(); ++i) {
      for (const StatePart part : kStateParts)
        weights.optimizer.load(part, i, at::zeros(weights.model.weights()[i].shape));
    }
  }
};

TEST_F(CheckpointSaverTest, state_crosses_all_grids_bit_for_bit) {
  const std::vector<Way> ways = {{.stages = 2, .replicas = 2},
                                 {.stages = 4},
                                 {.replicas = 3},
                                 {.stages = 2, .replicas = 2, .zero = true},
                                 {},
                                 {.stages = 4, .zero = true},
                                 {.replicas = 3, .zero = true},
                                 {.stages = 2, .replicas = 2, .dedicated = 1},
                                 {.stages = 2, .replicas = 3, .zero = true, .layers = "1,3"},
                                 {.stages = 2, .layers = "3,1"},
                                 {.replicas = 2}};
  for (const std::string dtype : {"float32", "bfloat16", "float64", "tied"}) {
    std::string before;
    for (Way way : ways) {
      way.tied = dtype == "tied";
      SCOPED_TRACE(way.name());
      const std::string name = dtype + " " + way.name();
      save(name, way, way.tied ? "bfloat16" : dtype, before);
      expect_known_state(name);
      before = name;
    }
  }
}

TEST_F(CheckpointSaverTest, each_rank_writes_its_share_of_its_own_stage) {
  for (const bool zero : {false, true}) {
    const Way way{.stages = 2, .replicas = 2, .zero = zero, .layers = "1,3"};
    const std::string name = way.name();
    save(name, way, "float32");
    const CheckpointIndex index = read_checkpoint_index(checkpoint(name));
    const std::vector<Weight> table = weight_table(testing::config_of(way, folder_).model);
    std::vector<int64_t> elements(way.workers());
    ASSERT_EQ(index.files.size(), elements.size());
    for (const StoredPiece& piece : index.pieces) {
      const int layer = table[piece.tensor].layer;
      const bool first = layer == kBeforeLayers || layer == 0;
      const int rank = piece.file.at(std::string("rank_").size()) - '0';
      EXPECT_EQ(rank / way.replicas, first ? 0 : 1) << table[piece.tensor].name;
      elements.at(rank) += piece.range.size();
    }
    for (const int stage : {0, 1}) {
      const double one = static_cast<double>(elements[2 * stage]);
      EXPECT_NEAR(one, static_cast<double>(elements[2 * stage + 1]), 3.0 * 4 * kFlatBlock)
          << "replicas have even shares";
      EXPECT_GT(one, 0);
    }
  }
}

TEST_F(CheckpointSaverTest, a_state_that_may_be_spoilt_removes_no_older_one) {
  const Way way{.replicas = 2};
  const Config config =
      testing::config_of(way, folder_ / "run", "float32",
                         {"checkpoint.every_steps=5", "checkpoint.keep_last=1", "train.steps=50"});
  const auto saved = [&] {
    std::vector<int64_t> steps;
    for (const CheckpointPlace& place : complete_checkpoints(folder_ / "run"))
      steps.push_back(place.before_bad_step ? -place.step : place.step);
    return steps;
  };
  testing::on_ranks(
      config, way, [&](Communicator& comm, const RunGrid& run, WorkerWeights* weights) {
        testing::set_known_state(*weights);
        CheckpointSaver saver(config, facts_of(config, way), "0123", 0, comm, run);
        const auto save = [&](int64_t step, bool before_bad_step, bool keeps) {
          saver.begin(step, Json::object(), &weights->optimizer, /*beside=*/true, before_bad_step);
          if (keeps) saver.keep_older();
          const bool succeeded = saver.finish();
          barrier(comm, "a look at the folder");
          return succeeded;
        };
        EXPECT_TRUE(save(5, false, false));
        EXPECT_TRUE(save(7, true, false));
        EXPECT_TRUE(save(10, false, true));
        EXPECT_THAT(saved(), ElementsAre(5, -7, 10));
        barrier(comm, "a look at the folder");
        EXPECT_TRUE(save(15, false, false));
        EXPECT_THAT(saved(), ElementsAre(15));
        barrier(comm, "a look at the folder");
        weights->optimizer.load(StatePart::kWeight, 0,
                                at::full(weights->model.weights()[0].shape, INFINITY));
        EXPECT_FALSE(save(20, false, false));
        EXPECT_THAT(saved(), ElementsAre(15));
      });
}

TEST_F(CheckpointSaverTest, another_grid_goes_on_to_rounding_and_says_so) {
  const Way way{.stages = 2, .replicas = 2};
  save("run", way, "float32");
  const CheckpointIndex index = read_checkpoint_index(checkpoint("run"));
  const auto said = [&](const Way& now, std::vector<std::string> keys) {
    keys.insert(keys.end(), {"checkpoint.every_steps=5", "train.steps=10"});
    return check_resume(index,
                        facts_of(testing::config_of(now, folder_ / "run", "float32", keys), now));
  };
  EXPECT_THAT(said(way, {}), ElementsAre("it goes on bit for bit"));
  EXPECT_THAT(said({.stages = 2, .replicas = 2, .zero = true}, {"parallel.bucket_mb=3"}),
              ElementsAre("it goes on bit for bit"));
  EXPECT_THAT(said({.stages = 4}, {}),
              ElementsAre("it goes on to rounding, not bit for bit: "
                          "parallel.pipeline_model_parallel_size was 2 and is 4"));
  EXPECT_THAT(said({.replicas = 3}, {}),
              ElementsAre("it goes on to rounding, not bit for bit: "
                          "parallel.pipeline_model_parallel_size was 2 and is 1; the number of "
                          "workers was 4 and is 3"));
  EXPECT_THAT(said({.stages = 2, .replicas = 2, .layers = "1,3"}, {"cluster.ranks_per_node=2"}),
              ElementsAre("it goes on to rounding, not bit for bit: cluster.ranks_per_node was 0 "
                          "and is 2; parallel.pipeline_layers was '' and is '1,3'"));
}

TEST_F(CheckpointSaverTest, what_rank_0_cannot_write_alone_needs_a_folder_that_all_see) {
  const auto refusal = [&](const Way& way) -> std::string {
    try {
      run_ranks(way.workers(), {.timeout_s = 60}, [&](Communicator& comm) {
        const fs::path own = folder_ / way.name() / std::to_string(comm.rank());
        const Config config = testing::config_of(way, own, "float32", {"comm.backend=gloo"});
        CheckpointSaver(config, facts_of(config, way), "0123", 0, comm,
                        run_grid(config, way.workers()));
      });
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal({.replicas = 2}), "") << "rank 0 has all";
  EXPECT_THAT(refusal({.replicas = 2, .zero = true}),
              StartsWith("parallel.use_distributed_optimizer needs a train.output_dir that all "
                         "workers see: "));
  EXPECT_THAT(refusal({.stages = 2, .zero = true}),
              AllOf(StartsWith("parallel.pipeline_model_parallel_size = 2 needs a "
                               "train.output_dir that all workers see: "),
                    HasSubstr("some do not see ")));
}

}  // namespace
}  // namespace distca
