#pragma once
// The checkpoints of a run, as folders: RUN/checkpoints/step_000100 and so on.
//
//     const fs::path folder = unfinished_checkpoint("runs/mine", 100);   // step_000100.tmp
//     // ... every rank writes its file there ...
//     complete_checkpoint("runs/mine", index);                           // step_000100
//     remove_old_checkpoints("runs/mine", 100, /*keep_last=*/2, /*keep_every=*/0);
//
// A checkpoint is complete when its folder has its final name: the index is written last, all files
// are synced to disk, and then the folder is renamed. A process that is killed at any moment leaves
// complete checkpoints as they were, and perhaps a folder that ends in .tmp, which nobody reads.
//
// When a run takes the place of another, or goes on from an older checkpoint than the newest, the
// checkpoints that it will not go on from are set aside: they move to RUN/checkpoints.old. They are
// removed when the first new one is complete.
//
// A checkpoint of the state before a bad step is evidence, not progress: a file in it says so. It
// counts for nothing that is kept, and goes when a later one is complete.
//
// Errors: Error(kIo) if the file system refuses. Thread rule: one thread of one process changes the
// checkpoints of a run, and one more may remove meanwhile what nobody needs any longer; any may
// look.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "distca/checkpoint/index.h"

namespace distca {

/// A checkpoint on disk whose folder has its final name.
struct CheckpointPlace {
  std::filesystem::path folder;
  int64_t step = 0;
  bool before_bad_step = false;  // the step after it was bad, or its last one was
};

/// Where the complete checkpoints of a run are.
std::filesystem::path checkpoints_folder(const std::filesystem::path& run);
/// Returns true if a path is a complete checkpoint's of this run. One that was set aside is not.
bool is_checkpoint_of(const std::filesystem::path& run, const std::filesystem::path& checkpoint);

/// The complete checkpoints of a run, oldest first. Empty if there is no such folder.
std::vector<CheckpointPlace> complete_checkpoints(const std::filesystem::path& run);
/// The checkpoints of a run that were set aside, oldest first.
std::vector<CheckpointPlace> old_checkpoints(const std::filesystem::path& run);

/// The checkpoints that a path means: itself if it is a checkpoint, otherwise all of the run,
/// oldest first. A run is named by its own folder or by that of its checkpoints.
struct FoundCheckpoints {
  std::optional<std::filesystem::path> run;  // nothing if the path is a checkpoint
  std::vector<CheckpointPlace> places;       // at least one
  const std::filesystem::path& newest() const { return places.back().folder; }
};
/// Throws Error(kCheckpoint) if there is none.
FoundCheckpoints find_checkpoints(const std::filesystem::path& path);

/// Where the ranks write the checkpoint of `step` until it is complete. It makes nothing.
std::filesystem::path unfinished_checkpoint(const std::filesystem::path& run, int64_t step);
/// Says in an unfinished checkpoint that the step after it was bad, or its last one was.
void mark_bad_step(const std::filesystem::path& run, int64_t step);
/// The weights of a complete checkpoint, for people: "runs/a/checkpoints/step_000020: the weights
/// after step 20", and that they may be spoilt if it was saved because of a bad step.
std::string describe_weights(const std::filesystem::path& checkpoint, int64_t step);
/// Writes the index and gives the checkpoint its final name.
void complete_checkpoint(const std::filesystem::path& run, const CheckpointIndex& index);
/// Removes what a killed save has left.
void remove_unfinished_checkpoints(const std::filesystem::path& run);
/// Gives up the checkpoint of `step` that was being written. What is there of it gets a name that
/// no later save has.
void give_up_checkpoint(const std::filesystem::path& run, int64_t step);
/// Removes what was given up.
void remove_given_up(const std::filesystem::path& run);

/// The newest complete checkpoint up to `step` that no bad step has marked.
std::optional<CheckpointPlace> newest_good(const std::filesystem::path& run, int64_t step);

/// Looks at the complete checkpoints up to that of `step`. Keeps the last `keep_last` of them (0:
/// all), and those whose step is a multiple of `keep_every` (0: none), and removes the others. One
/// that a bad step has marked does not count: it stays until one after it is complete.
void remove_old_checkpoints(const std::filesystem::path& run, int64_t step, int64_t keep_last,
                            int64_t keep_every);

/// Sets aside all complete checkpoints after `step` (0: all of them).
void set_aside_checkpoints(const std::filesystem::path& run, int64_t step);
/// Removes what was set aside.
void remove_set_aside(const std::filesystem::path& run);

}  // namespace distca
