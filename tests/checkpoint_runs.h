#pragma once
// Runs with checkpoints, by the program, and what they saved. Linux; one thread.

#include <gmock/gmock.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "distca/checkpoint/folder.h"
#include "distca/checkpoint/reader.h"
#include "tests/run_command.h"
#include "tests/training_testing.h"

namespace distca::testing {

/// What decides the next step's bits, as one checkpoint has it.
struct SavedState {
  std::map<std::string, std::string> files;  // of the ranks: weights, AdamW's moments
  Json trainer;
  int64_t updates = 0;
};

class CheckpointTest : public TrainingTest {
 protected:
  std::filesystem::path checkpoint(int64_t step, const std::string& name = "run") const {
    return folder_ / name / "checkpoints" / fmt::format("step_{:06}", step);
  }
  /// The steps of the complete checkpoints, oldest first.
  std::vector<int64_t> saved(const std::string& name = "run") const {
    std::vector<int64_t> steps;
    for (const CheckpointPlace& place : complete_checkpoints(folder_ / name))
      steps.push_back(place.step);
    return steps;
  }
  /// What saves that were not finished have left.
  std::vector<std::string> unfinished(const std::string& name = "run") const {
    std::vector<std::string> left;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_ / name)) {
      if (entry.path().extension() == ".tmp") left.push_back(entry.path());
    }
    return left;
  }
  SavedState state(int64_t step, const std::string& name = "run") const {
    const CheckpointIndex index = read_checkpoint_index(checkpoint(step, name));
    SavedState state{.files = read_files(checkpoint(step, name)),
                     .trainer = index.trainer,
                     .updates = index.updates};
    state.files.erase(kIndexFile);  // it names the run
    return state;
  }

  /// Goes on with a run to its end.
  Outcome resume(const Words& more, const std::string& name = "run") const {
    return succeed(arguments(joined(more, {"--resume"}), name));
  }

  bool wait_for_steps(size_t steps) const {
    return wait_until([&] { return metrics().size() >= steps; }, 60, 0.002);
  }
  /// Kills all processes of the program, which is not asked.
  void kill_all() {
    program_->signal_group(SIGKILL);
    program_->wait();
    ASSERT_TRUE(wait_until([&] { return program_->processes().empty(); }, 20));
  }
};

inline void expect_same_state(const SavedState& got, const SavedState& want) {
  EXPECT_FALSE(want.files.empty());
  EXPECT_TRUE(got.files == want.files) << "other bytes in a rank's file";
  EXPECT_EQ(got.trainer, want.trainer);
  EXPECT_EQ(got.updates, want.updates);
}

}  // namespace distca::testing
