// Pipelines that go on from a checkpoint: on the same grid of stages and replicas bit for bit, on
// any other to rounding. What a checkpoint holds: distca/train/checkpoint_saver_test.cc.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <utility>

#include "distca/base/file.h"
#include "tests/checkpoint_runs.h"

namespace distca::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int64_t kSteps = 8, kSaved = 5;

struct Grid {
  int stages = 1, replicas = 1;
  Words more = {};
};

class ResumeGrid : public CheckpointTest {
 protected:
  static Words words(const Grid& grid, const std::string& dtype) {
    return joined({"model.num_hidden_layers=4", "batch.nano_batches=4", "model.dtype=" + dtype,
                   fmt::format("train.steps={}", kSteps), "train.validation_every=4",
                   "parallel.bucket_mb=0.02", "checkpoint.every_steps=1", "checkpoint.keep_last=0",
                   fmt::format("parallel.pipeline_model_parallel_size={}", grid.stages),
                   "--workers", std::to_string(grid.stages * grid.replicas)},
                  grid.more);
  }
  /// Goes on after kSaved in a folder of its own; returns what was printed.
  std::string go_on(const std::string& from, const std::string& name, const Words& words) const {
    const std::string checkpoint_words = checkpoint(kSaved, from);
    return succeed(arguments(joined(words, {"--resume", checkpoint_words}), name)).out;
  }
  static std::vector<double> tail(const std::vector<double>& all) {
    return {all.end() - (kSteps - kSaved), all.end()};
  }
};

TEST_F(ResumeGrid, another_grid_holds_the_result_of_the_straight_run) {
  const auto on = [](int stages, int replicas, const Words& more = {}) {
    return words({stages, replicas, joined({"comm.backend=threads"}, more)}, "float64");
  };
  const Training straight = train("straight", on(2, 2));
  const auto expect_same = [&](const std::string& name) {
    const Training got = read_training(name);
    expect_near(got.losses, tail(straight.losses), 1e-10, name + ": loss");
    expect_near(got.norms, tail(straight.norms), 1e-10, name + ": norm");
    ASSERT_EQ(straight.validation.size(), 2u);
    expect_near(got.validation, {straight.validation[1]}, 1e-10, name + ": validation loss");
    expect_near_state(checkpoint(kSteps, name), checkpoint(kSteps, "straight"));
  };
  EXPECT_THAT(go_on("straight", "four stages", on(4, 1)),
              HasSubstr("\nit goes on to rounding, not bit for bit: "
                        "parallel.pipeline_model_parallel_size was 2 and is 4\n"));
  expect_same("four stages");
  EXPECT_THAT(go_on("straight", "no pipeline", on(1, 3)),
              HasSubstr("parallel.pipeline_model_parallel_size was 2 and is 1; the number of "
                        "workers was 4 and is 3\n"));
  expect_same("no pipeline");
  const Words shared = {"parallel.use_distributed_optimizer=true", "servers.dedicated=1"};
  const Training alone = train("alone", on(1, 1));
  expect_same_result(alone, straight, "alone");
  go_on("alone", "shared stages", on(2, 2, shared));
  expect_same("shared stages");
}

TEST_F(ResumeGrid, the_next_loss_has_the_same_bits_for_every_number_of_stages) {
  for (const int replicas : {1, 2}) {
    const auto on = [&](int stages) {
      return words({stages, replicas, {"comm.backend=threads"}}, "float32");
    };
    const std::string from = fmt::format("from {}", replicas);
    const Training straight = train(from, on(2));
    for (const int stages : {1, 2, 3, 4}) {
      const std::string name = fmt::format("{}x{}", stages, replicas);
      go_on(from, name, on(stages));
      EXPECT_EQ(read_training(name).losses.at(0), tail(straight.losses).at(0)) << name;
    }
  }
}

TEST_F(ResumeGrid, a_tied_embedding_that_two_stages_hold_goes_on_anywhere) {
  const auto on = [](int stages, int replicas, bool zero) {
    return words({stages,
                  replicas,
                  {"comm.backend=threads", "model.tie_word_embeddings=true",
                   fmt::format("parallel.use_distributed_optimizer={}", zero)}},
                 "float64");
  };
  const Training straight = train("straight", on(2, 2, true));
  for (const auto& [name, grid] : {std::pair{"plain", on(2, 2, false)},
                                   {"four stages", on(4, 1, true)},
                                   {"no pipeline", on(1, 3, false)}}) {
    go_on("straight", name, grid);
    const Training got = read_training(name);
    expect_near(got.losses, tail(straight.losses), 1e-10, name);
    expect_near(got.norms, tail(straight.norms), 1e-10, name);
    expect_near_state(checkpoint(kSteps, name), checkpoint(kSteps, "straight"));
  }
}

TEST_F(ResumeGrid, the_same_grid_goes_on_bit_for_bit) {
  const Words same = words({2, 2}, "float32");
  const Training straight = train("straight", same);
  const Words ways[] = {{}, {"comm.backend=threads"}, {"parallel.use_distributed_optimizer=true"}};
  for (const Words& way : ways) {
    const std::string name = way.empty() ? "processes" : way[0];
    EXPECT_THAT(go_on("straight", name, joined(same, way)),
                AllOf(HasSubstr(fmt::format("\ngoing on after step {} from ", kSaved)),
                      HasSubstr("\nit goes on bit for bit\n")));
    const Training got = read_training(name);
    EXPECT_EQ(got.losses, tail(straight.losses)) << name;
    EXPECT_EQ(got.norms, tail(straight.norms)) << name;
    EXPECT_EQ(got.validation.back(), straight.validation.back()) << name;
    EXPECT_TRUE(got.weights == straight.weights) << name;
    if (way.empty() || way[0].starts_with("comm."))
      expect_same_state(state(kSteps, name), state(kSteps, "straight"));
  }
  // The end of the run brought the same weights together as the checkpoint's pieces hold.
  succeed({"export", checkpoint(kSteps, "straight"), "--out", folder_ / "exported"});
  EXPECT_TRUE(read_file(folder_ / "exported" / "model.safetensors") == straight.weights);
}

TEST_F(ResumeGrid, a_pipeline_of_which_one_rank_is_stopped_saves_and_goes_on_bit_for_bit) {
  const Words slow =
      joined(words({2, 2}, "float32"), {"train.steps=24", "batch.nano_batch_tokens=1024",
                                        "train.validation_every=0", "checkpoint.every_steps=0"});
  const Training straight = train("straight", slow);
  program_.emplace(arguments(slow));
  ASSERT_TRUE(wait_for_steps(3));
  kill(program_->pid_of_rank(3), SIGTERM);
  const Outcome outcome = program_->wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  ASSERT_THAT(saved(), SizeIs(1)) << outcome.err;
  EXPECT_LT(saved().front(), 24);
  EXPECT_THAT(resume(slow).out, HasSubstr("\nit goes on bit for bit\n"));
  expect_same_bits(read_training("run"), straight);
}

}  // namespace
}  // namespace distca::testing
