#pragma once
// Runs with checkpoints, by the program, and what they saved. Linux; one thread.

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "distca/checkpoint/folder.h"
#include "distca/checkpoint/reader.h"
#include "tests/run_command.h"
#include "tests/training_testing.h"

namespace distca::testing {

/// The contents of a checkpoint that decide the bits of the next step.
struct SavedState {
  std::map<std::string, std::string> files;  // the ranks' weights and AdamW's moments, by file
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
  /// The .tmp files that unfinished saves have left in the run's folder.
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
    state.files.erase(kIndexFile);      // it names the run
    state.files.erase("bad_step.txt");  // it depends on what the run did next
    return state;
  }

  /// Goes on with a run to its end.
  Outcome resume(const Words& more, const std::string& name = "run") const {
    return succeed(arguments(joined(more, {"--resume"}), name));
  }

  bool wait_for_steps(size_t steps) const {
    return wait_until([&] { return metrics().size() >= steps; }, kPatience, 0.002);
  }
  /// Kills all processes of the program, which is not asked.
  void kill_all() {
    program_->signal_group(SIGKILL);
    program_->wait();
    ASSERT_TRUE(wait_until([&] { return program_->processes().empty(); }));
  }
};

inline void expect_same_state(const SavedState& got, const SavedState& want) {
  EXPECT_FALSE(want.files.empty());
  EXPECT_TRUE(got.files == want.files) << "other bytes in a rank's file";
  EXPECT_EQ(got.trainer, want.trainer);
  EXPECT_EQ(got.updates, want.updates);
}

inline std::vector<double> numbers_of(const CheckpointReader& reader, size_t tensor,
                                      StatePart part) {
  const StoredTensor& stored = reader.index().tensors[tensor];
  EXPECT_EQ(stored.type, ScalarType::kFloat64);
  std::vector<double> values(static_cast<size_t>(stored.numel()));
  reader.read(static_cast<int64_t>(tensor), part, std::as_writable_bytes(std::span(values)));
  return values;
}

/// Each tensor to 1e-10 of its largest value.
inline void expect_near_state(const std::filesystem::path& got_folder,
                              const std::filesystem::path& want_folder) {
  const CheckpointReader got(got_folder), want(want_folder);
  ASSERT_EQ(got.index().tensors, want.index().tensors);
  for (size_t i = 0; i < want.index().tensors.size(); ++i) {
    for (const StatePart part : kStateParts) {
      const std::vector<double> a = numbers_of(got, i, part), b = numbers_of(want, i, part);
      double worst = 0, largest = 0;
      for (size_t k = 0; k < b.size(); ++k) {
        worst = std::max(worst, std::abs(a[k] - b[k]));
        largest = std::max(largest, std::abs(b[k]));
      }
      EXPECT_LE(worst, 1e-10 * largest)
          << want.index().tensors[i].name << " " << part_name(part) << " of " << got_folder;
    }
  }
}

}  // namespace distca::testing
