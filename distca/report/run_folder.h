#pragma once
// The folder of a run (train.output_dir): which files belong to a run, when a run may take a
// folder, and how its weights replace those of an older run.
//
//     RunFolder folder("runs/mine", {.overwrite = config.train.overwrite});
//     folder.reserve(weights_bytes, config_json);    // ends here if the disk is too full
//     folder.begin(recorded_config(config));
//     // ... all steps; lines go to folder.metrics_path() ...
//     folder.save([&](AtomicFile& file) { write_weights(file, model, metadata); });
//
// A run's files are config.toml, metrics.jsonl, model.safetensors, config.json and the folder
// checkpoints. Depending on what a folder holds, a run
//   * takes it, if it has none of these files, or an unfinished run (one without weights and
//     checkpoints);
//   * needs train.overwrite, if it has the weights or checkpoints of a run, unless it goes on from
//     one of these checkpoints;
//   * refuses it in any case, if something else made a file of these names. So nobody else's model
//     or configuration is ever touched.
// The files of a run are recognized: config.toml and model.safetensors say that we made them,
// metrics.jsonl has lines of a run, and config.json lies next to our weights.
//
// Only rank 0's machine matters, because rank 0 alone writes. While a run writes to a folder, no
// other run may: rank 0 holds a lock on metrics.jsonl, which the system releases however the
// process ends. (Where the file system has no locks, nothing prevents a second run.)
//
// An older run's config.toml and metrics.jsonl are replaced when the new run begins. A run that
// goes on keeps the lines of metrics.jsonl up to its checkpoint's step. Checkpoints that the run
// does not go on from are set aside (checkpoint/folder.h). The older weights and their config.json
// stay until the new ones are complete. Those are first written under other names and then renamed.
// If a process is killed between these two renames, everything needed is on disk, and the next run
// that looks at the folder finishes the second one.
//
// Thread rule: one thread.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "distca/base/file.h"

namespace distca {

/// How a run takes a folder.
struct TakeFolder {
  bool overwrite = false;  // train.overwrite
  /// The step of the folder's checkpoint that the run goes on from. 0 means that there is none.
  int64_t goes_on_after = 0;
  bool trains = true;  // false if it goes on for no step
};

/// Throws what taking the folder would throw, except where the file system refuses to write. It
/// creates nothing. If an older run was killed between its two renames, this finishes the second
/// one. Call it on rank 0's machine, before ranks start.
void check_run_folder(const std::filesystem::path& folder, const TakeFolder& how);

/// A folder that a run has taken.
class RunFolder {
 public:
  /// Takes the folder and makes it if needed. Throws Error(kConfig) if the folder is refused or
  /// another run holds it, and Error(kIo) if it cannot be made.
  RunFolder(std::filesystem::path folder, const TakeFolder& how);
  /// Releases the lock. If begin() was not called, removes what this object has made. Removes
  /// weights that were not put in place.
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  /// A line for people, such as "replacing the run in DIR (100 steps, 2026-11-22)", or that steps
  /// behind the one that it goes on from are given up. Empty if nothing of value is replaced.
  const std::string& replaces() const { return replaces_; }

  /// Reserves disk space for the files that save() writes, and leaves those that exist unchanged.
  /// Throws Error(kIo) if the disk has too little.
  void reserve(int64_t weights_bytes, const std::string& config_json);
  /// Writes config.toml, cuts metrics.jsonl and sets checkpoints aside. From now on, the folder
  /// holds this run.
  void begin(const std::string& config_toml);
  std::filesystem::path metrics_path() const;
  /// Returns true if save() replaces the weights of another run, also where a start before this one
  /// has begun to.
  bool replaces_model() const;
  /// Replaces the weights and config.json. `write_weights` writes the weights, and `write_others`,
  /// which does not throw, what belongs to them, once they are whole. The text of config.json is
  /// the one that reserve() was given. Call it once, after reserve(). Throws Error(kIo), which says
  /// what is lost.
  void save(
      const std::function<void(AtomicFile&)>& write_weights,
      const std::function<void()>& write_others = [] {});

 private:
  void take_lock();
  void cut_metrics();

  std::filesystem::path folder_;
  TakeFolder how_;
  FileDescriptor lock_;  // destroyed after all that follows
  bool made_metrics_ = false, made_folder_ = false, began_ = false;
  bool had_weights_ = false;     // true if the folder had weights of an older run
  std::string said_of_weights_;  // then, what the folder says of them meanwhile
  std::string replaces_;
  std::optional<AtomicFile> weights_, config_json_;
};

/// Where the newest weights of a folder are.
struct NewestWeights {
  std::filesystem::path checkpoint;  // empty if they are the folder's own
  std::optional<int64_t> steps;      // after which a run wrote them. Nothing if no run did
};
/// `folder` is a run's, a checkpoint's, an export's or one of Hugging Face. The weights of a run's
/// end count until another run has begun in the folder or gone on from there. Throws
/// Error(kCheckpoint) if there are none, or only those of a run that another one is replacing.
NewestWeights newest_weights(const std::filesystem::path& folder);

/// Returns true while a run's folder holds, with their tokenizer, the weights of another run, which
/// it replaces at its end.
bool holds_model_of_other_run(const std::filesystem::path& run);

/// The first line of a run's config.toml.
constexpr const char* kConfigTomlMark = "# Written by distca train: what was run.";
/// The key that says, in the header of a run's model.safetensors, who has written the file. The key
/// "steps" is next to it.
constexpr const char* kProducerKey = "producer";
constexpr const char* kProducer = "distca train";
/// How the name of a file begins by which ranks find out whether they all see the folder.
constexpr const char* kSeenFile = ".seen_by_all_ranks.";

}  // namespace distca
