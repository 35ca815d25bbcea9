// Checkpoints that cross grids: what some stages and replicas have written, others read. Whole runs
// are in tests/resume_test.cc.

#include "distca/train/checkpoint_saver.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>

#include <cmath>

#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/batch/test_folder.h"
#include "distca/checkpoint/folder.h"
#include "distca/checkpoint/reader.h"
#include "distca/comm/aten_types.h"
#include "distca/comm/collectives.h"
#include "distca/comm/thread_group.h"
#include "distca/model/weights_file.h"
#include "distca/train/start_weights.h"
#include "distca/train/worker_weights_testing.h"

namespace {
std::atomic<double> removal_s = 0;  // seconds by which removing rank 0's file is delayed
}  // namespace

/// Replaces the C library's function, by which the standard library removes folders.
extern "C" int unlinkat(int folder, const char* path, int flags) noexcept {
  if (std::strstr(path, "rank_0") != nullptr)
    std::this_thread::sleep_for(std::chrono::duration<double>(removal_s));
  return static_cast<int>(syscall(SYS_unlinkat, folder, path, flags));
}

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

  /// Returns the configuration of a run that saves after each step and keeps the newest checkpoint,
  /// and whose ranks wait for each other for 6 s.
  Config keeps_one(const Way& way) const {
    return testing::config_of(
        way, folder_ / "run", "float32",
        {"checkpoint.every_steps=1", "checkpoint.keep_last=1", "comm.timeout_s=6"});
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
    weights.optimizer.gather_weights(weights.all_workers);
    EXPECT_EQ(weights.optimizer.updates(), testing::kKnownUpdates);
    // Phases use them, also where another rank updates them.
    const std::vector<StoredTensor> stored = stored_weights(config.model, weights.model.stage());
    for (size_t i = 0; i < stored.size(); ++i) {
      const at::Tensor& parameter = weights.model.parameters()[i];
      const at::Tensor known = part_of(weights.model.weights()[i].box,
                                       testing::known_state(stored[i], StatePart::kWeight));
      EXPECT_TRUE(at::equal(parameter, known.to(parameter.scalar_type()))) << stored[i].name;
    }
  }
  /// Changes the whole state, which the next step may do while the state is written.
  static void spoil(WorkerWeights& weights) {
    for (size_t i = 0; i < weights.model.weights().size(); ++i) {
      for (const StatePart part : kStateParts)
        weights.optimizer.load(part, i, at::zeros(weights.model.weights()[i].held_shape()));
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
                                 {.stages = 2, .replicas = 2, .tensor = 2, .zero = true},
                                 {.tensor = 4},
                                 {.replicas = 2, .tensor = 2},
                                 {.stages = 2, .replicas = 3, .zero = true, .layers = "1,3"},
                                 {.replicas = 2, .tensor = 4, .zero = true},
                                 {.stages = 3, .tensor = 2, .dedicated = 1},
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

TEST_F(CheckpointSaverTest, what_tensor_parallelism_does_not_divide_is_written_once) {
  Way way{.replicas = 2, .tensor = 4};  // two ranks share a key/value head
  for (const bool zero : {false, true}) {
    way.zero = zero;
    save("run", way, "float32");
    const CheckpointIndex index = read_checkpoint_index(checkpoint("run"));
    int64_t elsewhere = 0;  // pieces that others than the first of their holders have written
    for (const StoredPiece& piece : index.pieces) {
      const std::string& name = index.tensors[piece.tensor].name;
      const int place = (piece.file.at(std::string("rank_").size()) - '0') % way.tensor;
      const bool is_norm = name.find("norm") != std::string::npos;
      const bool is_shared = name.find("k_proj") != std::string::npos;
      elsewhere += (is_norm && place > 0) || (is_shared && place % 2 > 0) ? 1 : 0;
    }
    EXPECT_EQ(elsewhere > 0, zero) << "ZeRO-1 divides them over all who hold them";
  }
  std::vector<int64_t> bytes(way.workers());
  testing::on_ranks(testing::config_of(way, folder_, "float32"), way,
                    [&](Communicator& comm, const RunGrid&, WorkerWeights* weights) {
                      const CheckpointReader reader(checkpoint("run"));
                      load_checkpoint(reader, weights->model.config(), weights->model.stage(),
                                      weights->optimizer);
                      bytes[comm.rank()] = reader.bytes_read();
                    });
  const CheckpointReader whole(checkpoint("run"));
  whole.check();
  const int64_t all = std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  EXPECT_EQ(all, whole.bytes_read()) << "each rank reads what it owns alone";
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
        const auto save = [&](int64_t step, bool before_bad_step, bool keeps, bool good = true) {
          bool succeeded = false;
          {  // its end waits until what is removed is gone
            CheckpointSaver saver(config, facts_of(config, way), "0123", 0, comm, run);
            saver.begin(step, Json::object(), &weights->optimizer, /*beside=*/true,
                        before_bad_step);
            if (keeps) saver.keep_older();
            succeeded = saver.finish();
            if (good) saver.good_until(step);
          }
          barrier(comm, "a look at the folder");
          return succeeded;
        };
        EXPECT_TRUE(save(5, false, false));
        EXPECT_TRUE(save(7, true, false));
        EXPECT_TRUE(save(10, false, true));
        EXPECT_THAT(saved(), ElementsAre(5, -7, 10));
        barrier(comm, "a look at the folder");
        EXPECT_TRUE(save(15, false, false, /*good=*/false));
        EXPECT_THAT(saved(), ElementsAre(5, -7, 10, 15)) << "nobody has computed with it";
        barrier(comm, "a look at the folder");
        EXPECT_TRUE(save(20, false, false));
        EXPECT_THAT(saved(), ElementsAre(20));
        barrier(comm, "a look at the folder");
        weights->optimizer.load(StatePart::kWeight, 0,
                                at::full(weights->model.weights()[0].shape, INFINITY));
        EXPECT_FALSE(save(25, false, false));
        EXPECT_THAT(saved(), ElementsAre(20));
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
                          "and is 2; parallel.pipeline_layers was [] and is [1, 3]"));
}

TEST_F(CheckpointSaverTest, no_rank_waits_until_older_ones_are_removed) {
  const Way way{.replicas = 2};
  const Config config = keeps_one(way);
  const RunGrid run = run_grid(config, way.workers());
  removal_s = 2 * config.comm.timeout_s;
  run_ranks(way.workers(), {.timeout_s = config.comm.timeout_s}, [&](Communicator& comm) {
    WorkerWeights weights(config, comm, run);
    CheckpointSaver saver(config, facts_of(config, way), "0123", 0, comm, run);
    for (const int64_t step : {1, 2}) {
      saver.begin(step, Json::object(), &weights.optimizer, /*beside=*/false);
      saver.good_until(step);
      EXPECT_TRUE(saver.finish());
      barrier(comm, "comparing the trained weights");
    }
  });
  removal_s = 0;
  const std::vector<CheckpointPlace> left = complete_checkpoints(folder_ / "run");
  ASSERT_EQ(left.size(), 1u) << "the end waits until they are removed";
  EXPECT_EQ(left[0].step, 2);
}

TEST_F(CheckpointSaverTest, a_failed_save_is_removed_beside_the_next) {
  const Way way{.replicas = 2};
  const Config config = keeps_one(way);
  const RunGrid run = run_grid(config, way.workers());
  const fs::path unfinished = unfinished_checkpoint(folder_ / "run", 1);
  fs::create_directories(unfinished / "rank_1.safetensors");  // rank 1 cannot write its file
  write_file_atomically(unfinished / "rank_1.safetensors" / "rank_1", "");
  removal_s = 2 * config.comm.timeout_s;
  run_ranks(way.workers(), {.timeout_s = config.comm.timeout_s}, [&](Communicator& comm) {
    WorkerWeights weights(config, comm, run);
    CheckpointSaver saver(config, facts_of(config, way), "0123", 0, comm, run);
    for (const bool saved : {false, true}) {  // one step twice: an emergency saves it again
      saver.begin(1, Json::object(), &weights.optimizer, /*beside=*/false);
      EXPECT_EQ(saver.finish(), saved);
      barrier(comm, "the next step");
    }
  });
  removal_s = 0;
  EXPECT_EQ(read_checkpoint_index(folder_ / "run/checkpoints/step_000001").files.size(), 2u);
  EXPECT_EQ(std::distance(fs::directory_iterator(checkpoints_folder(folder_ / "run")), {}), 1);
}

TEST_F(CheckpointSaverTest, a_rank_reads_what_it_updates) {
  for (const Way& way : {Way{.replicas = 4, .zero = true}, Way{.stages = 4},
                         Way{.stages = 2, .replicas = 2, .zero = true}, Way{.replicas = 2}}) {
    save(way.name(), way, "float32");
    const CheckpointReader whole(checkpoint(way.name()));
    whole.check();
    std::vector<int64_t> bytes(way.workers());
    testing::on_ranks(testing::config_of(way, folder_, "float32"), way,
                      [&](Communicator& comm, const RunGrid&, WorkerWeights* weights) {
                        const CheckpointReader reader(checkpoint(way.name()));
                        load_checkpoint(reader, weights->model.config(), weights->model.stage(),
                                        weights->optimizer);
                        bytes[comm.rank()] = reader.bytes_read();
                      });
    const int64_t times = way.zero ? 1 : way.replicas;
    EXPECT_EQ(std::accumulate(bytes.begin(), bytes.end(), int64_t{0}), times * whole.bytes_read())
        << way.name();
  }
}

TEST_F(CheckpointSaverTest, damage_that_one_rank_finds_is_that_of_all) {
  const Way way{.replicas = 2, .zero = true};
  save("run", way, "float32");
  const fs::path file = checkpoint("run") / "rank_1.safetensors";
  std::string bytes = read_file(file);
  bytes[bytes.size() - 5] ^= 4;  // in the last moment of rank 1
  write_file_atomically(file, bytes);
  const Config config = testing::config_of(way, folder_ / "run", "float32");
  testing::on_ranks(config, way, [&](Communicator& comm, const RunGrid&, WorkerWeights* weights) {
    std::vector<std::string> words;
    const auto chosen = comm.rank() == 0 ? std::optional(checkpoint("run")) : std::nullopt;
    const auto reader = open_checkpoint(comm, config, chosen);
    ASSERT_NE(reader, nullptr);
    try {
      read_start_weights(comm, reader.get(), config, weights, words);
      ADD_FAILURE() << "no rank has found it";
    } catch (const DamagedCheckpoint& damage) {
      EXPECT_THAT(damage.what(), StartsWith("rank 1: " + file.string()));
      EXPECT_EQ(damage.step, kStep);
    }
    EXPECT_EQ(open_checkpoint(comm, config, {}), nullptr);
  });
}

/// Rank 1 sees the folder a second late, as a client of NFS may if another machine has made it.
TEST_F(CheckpointSaverTest, a_folder_that_a_rank_sees_late_is_waited_for) {
  const Way way{.replicas = 2, .zero = true};
  save("rank_0", way, "float32");
  const std::jthread late([&] {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    fs::create_directory_symlink("rank_0", folder_ / "rank_1");
  });
  run_ranks(way.workers(), {.timeout_s = 60}, [&](Communicator& comm) {
    const fs::path own = folder_ / fmt::format("rank_{}", comm.rank());
    const Config config = testing::config_of(way, own, "float32", {"comm.backend=gloo"});
    const auto reader = open_checkpoint(comm, config, checkpoint("rank_0"));
    EXPECT_EQ(reader->folder(), own / "checkpoints" / fmt::format("step_{:06}", kStep));
    const RunGrid run = run_grid(config, way.workers());
    CheckpointSaver(config, facts_of(config, way), "0123", 0, comm, run);
  });
}

TEST_F(CheckpointSaverTest, a_checkpoint_that_rank_0_cannot_open_is_waited_for_by_none) {
  const Way way{.replicas = 2};
  const Config config = testing::config_of(way, folder_ / "none", "float32");
  const Stopwatch watch;
  EXPECT_THROW(
      run_ranks(way.workers(), {.timeout_s = 60},
                [&](Communicator& comm) { open_checkpoint(comm, config, checkpoint("none")); }),
      Error);
  EXPECT_LT(watch.seconds(), late_folder_s(config));
}

TEST_F(CheckpointSaverTest, what_rank_0_cannot_write_alone_needs_a_folder_that_all_see) {
  const auto refusal = [&](const Way& way) -> std::string {
    try {
      run_ranks(way.workers(), {.timeout_s = 300}, [&](Communicator& comm) {
        const fs::path own = folder_ / way.name() / std::to_string(comm.rank());
        const Config config = testing::config_of(way, own, "float32",
                                                 {"comm.backend=gloo", "comm.startup_timeout_s=1"});
        if (comm.rank() == 0) fs::create_directories(own);  // it has taken its folder
        CheckpointSaver(config, facts_of(config, way), "0123", 0, comm,
                        testing::grid_of(config, way));
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
  EXPECT_THAT(refusal({.tensor = 2}), StartsWith("parallel.tensor_model_parallel_size = 2 needs "));
  EXPECT_THAT(refusal({.stages = 2, .zero = true}),
              AllOf(StartsWith("parallel.pipeline_model_parallel_size = 2 needs a "
                               "train.output_dir that all workers see: "),
                    HasSubstr("some do not see ")));
}

}  // namespace
}  // namespace distca
