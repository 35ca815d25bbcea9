// Runs that are killed, and go on from their last complete checkpoint as if nobody had disturbed
// them. Kills at any moment: harness/kills.py.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "distca/base/random.h"
#include "tests/checkpoint_runs.h"

namespace distca::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

void sleep_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

/// A way to train and to save.
struct Way {
  const char* name;
  Words words;
};
std::string name_of(const ::testing::TestParamInfo<Way>& info) { return info.param.name; }

const std::string kAsync = "checkpoint.async=true", kSync = "checkpoint.async=false";
const Way kWays[] = {
    {"fp32", {"--workers", "2", kAsync}},
    {"fp32_waiting", {"--workers", "2", kSync}},
    {"bf16", {"--workers", "2", "model.dtype=bfloat16", kAsync}},
    {"bf16_waiting", {"--workers", "2", "model.dtype=bfloat16", kSync}},
    {"dedicated", {"--workers", "2", "servers.dedicated=1", kAsync}},
    {"dedicated_waiting", {"--workers", "2", "servers.dedicated=1", kSync}},
    {"threads", {"--workers", "2", "comm.backend=threads", kAsync}},
    {"threads_waiting", {"--workers", "2", "comm.backend=threads", kSync}},
    {"one_order", {"--workers", "2", "train.overlap=none", kAsync}},
    {"one_worker", {kAsync}},
};

class KilledWhileSaving : public CheckpointTest, public ::testing::WithParamInterface<Way> {
 protected:
  /// Kills the run while its checkpoint of step 10 is being written; the first tries are a little
  /// later than it begins, and may come too late.
  void kill_while_saving(const Words& words) {
    Random random(1);
    const fs::path saving = unfinished_checkpoint(run_, 10);
    for (int attempt = 0; attempt < 60; ++attempt) {
      program_.reset();
      fs::remove_all(run_);
      program_.emplace(arguments(words));
      ASSERT_TRUE(
          wait_until([&] { return fs::exists(saving) || fs::exists(run_ / "model.safetensors"); },
                     kPatience, 0.00005));
      if (attempt < 3) sleep_for(0.002 * random.uniform());
      ASSERT_NO_FATAL_FAILURE(kill_all());
      if (fs::exists(saving)) return;
    }
    FAIL() << "no kill came while it saved";
  }
};

TEST_P(KilledWhileSaving, it_goes_on_bit_for_bit) {
  const Words words = joined(GetParam().words, {"train.steps=10", "train.validation_every=5",
                                                "checkpoint.every_steps=5", "comm.grace_s=1"});
  const Training straight = train("straight", words);
  ASSERT_EQ(straight.losses.size(), 10u);
  EXPECT_THAT(saved("straight"), ElementsAre(5, 10));

  ASSERT_NO_FATAL_FAILURE(kill_while_saving(words));
  EXPECT_THAT(saved(), ElementsAre(5));
  EXPECT_FALSE(fs::exists(run_ / "model.safetensors"));
  const Outcome resumed = resume(words);
  EXPECT_THAT(resumed.out, AllOf(HasSubstr("\ngoing on after step 5 from " + run_.string()),
                                 HasSubstr("\nit goes on bit for bit\n"),
                                 HasSubstr("\nLearned since step 5\n")));
  EXPECT_THAT(resumed.err, IsEmpty());
  expect_same_bits(read_training("run"), straight);
  expect_same_state(state(10), state(10, "straight"));
  EXPECT_THAT(saved(), ElementsAre(5, 10));
  EXPECT_THAT(unfinished(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(, KilledWhileSaving, ::testing::ValuesIn(kWays), name_of);

class Restart : public CheckpointTest {};

TEST_F(Restart, three_lost_ranks_cost_no_bit_of_the_weights) {
  const Words words = {"--workers",
                       "2",
                       "train.steps=120",  // so many more than are done when the last rank is lost
                       "train.validation_every=0",
                       "checkpoint.every_steps=4",
                       "comm.grace_s=1"};
  const Training straight = train("straight", words);
  Random random(2);
  program_.emplace(arguments(joined(words, {"--max-restarts", "3"})));
  for (int lost = 0; lost < 3; ++lost) {
    const size_t steps = 5 + 15 * static_cast<size_t>(lost) + random.below(10);
    ASSERT_TRUE(wait_for_steps(steps));
    pid_t victim = 0;
    ASSERT_TRUE(wait_until([&] {
      program_->signal_group(SIGSTOP);  // it does not end meanwhile
      try {
        victim = program_->pid_of_rank(static_cast<int>(random.below(2)));
        kill(victim, SIGKILL);
      } catch (const std::runtime_error&) {  // between two attempts
      }
      program_->signal_group(SIGCONT);
      return victim != 0;
    }));
    ASSERT_TRUE(wait_until([&] { return kill(victim, 0) != 0; }));
  }
  const Outcome outcome = program_->wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* restart : {"restart 1 of 3", "restart 2 of 3", "restart 3 of 3"})
    EXPECT_THAT(outcome.err, HasSubstr(restart));
  EXPECT_THAT(outcome.out, HasSubstr("\nit goes on bit for bit\n"));
  expect_same_bits(read_training("run"), straight);
  expect_same_state(state(120), state(120, "straight"));
}

TEST_F(Restart, without_a_checkpoint_yet_the_run_begins_anew) {
  const Words words = {"--workers", "2", "train.steps=30", "checkpoint.every_steps=0",
                       "comm.grace_s=1"};
  const Training straight = train("straight", words);
  program_.emplace(arguments(joined(words, {"--max-restarts", "1"})));
  ASSERT_TRUE(wait_for_steps(3));
  program_->signal_group(SIGSTOP);  // it does not end meanwhile
  kill(program_->pid_of_rank(1), SIGKILL);
  program_->signal_group(SIGCONT);
  EXPECT_EQ(program_->wait().exit_code, 0);
  expect_same_bits(read_training("run"), straight);
}

}  // namespace
}  // namespace distca::testing
