#pragma once
// What the folder of a run (train.output_dir) means: which files belong to a run, when a run may
// take a folder, and how its weights replace those of the run before.
//
// A run's files are config.toml, metrics.jsonl, model.safetensors and config.json. By what is
// there, a run
//   * takes a folder with none of them, or with an unfinished run (no weights);
//   * needs train.overwrite for one that holds a run's weights;
//   * refuses, whatever is permitted, one where a file of these names was made by something else: a
//     model or configuration of others is never touched.
// Ours are a config.toml and a model.safetensors that say so, a metrics.jsonl with lines of a run,
// and a config.json beside weights of ours.
//
// Only rank 0's machine matters: it alone writes. One run a folder: rank 0 holds a lock on
// metrics.jsonl, which goes with the process, however that ends (a file system that knows no locks
// has none).
//
// An older run's weights and their config.json stay as they are until the new ones are whole; its
// config.toml and metrics.jsonl are replaced when the new run begins. Both weights and config.json
// are staged under other names, then renamed; a process killed between these two renames leaves a
// folder of which the next run that looks at it makes the new pair, for from then on nothing is
// missing.
// Thread rule: one thread.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "distca/base/file.h"

namespace distca {

/// What a folder held when it was looked at.
struct FoundRun {
  enum class Kind { kNothing, kUnfinished, kFinished };
  Kind kind = Kind::kNothing;
  int64_t steps = 0;  // of the weights, if there are any, else of metrics.jsonl
  std::string date;   // of their last change, as 2026-11-22; empty with kNothing
};

/// Throws Error(kConfig) naming the file that no run made; Error(kIo) if the folder cannot be read.
FoundRun find_run(const std::filesystem::path& folder);

/// Throws as taking the folder would, but for the disk; makes nothing. Finishes what a run killed
/// between two renames has left. For rank 0's machine, before ranks start.
void check_run_folder(const std::filesystem::path& folder, bool overwrite);

/// A folder taken by a run that is under way.
class RunFolder {
 public:
  /// Throws Error(kConfig) where the folder is refused or another run holds it, Error(kIo) where
  /// it cannot be made.
  RunFolder(std::filesystem::path folder, bool overwrite);
  /// Gives the lock back. Of a run that did not begin(), and of weights that were not put in place,
  /// nothing is left.
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  /// What was there when the folder was taken.
  const FoundRun& found() const { return found_; }
  /// "replacing the run in DIR (100 steps, 2026-11-22)"; empty where nothing of worth is replaced.
  std::string replaces() const;

  /// Takes the space that the run's last files need; what is there stays as it is. Throws
  /// Error(kIo) if the disk lacks it.
  void reserve(int64_t weights_bytes, const std::string& config_json);
  /// Writes config.toml and empties metrics.jsonl: from here on the folder is this run's.
  void begin(const std::string& config_toml);
  std::filesystem::path metrics_path() const;
  /// Puts what `write_weights` writes, and config.json, in place of those that are there; once,
  /// after reserve(). Throws Error(kIo) with what is lost.
  void save(const std::function<void(AtomicFile&)>& write_weights);

 private:
  void take_lock();

  std::filesystem::path folder_;
  FileDescriptor lock_;  // last to go but the path
  bool made_metrics_ = false, made_folder_ = false, began_ = false;
  FoundRun found_;
  std::optional<AtomicFile> weights_, config_json_;
};

/// The first line of a run's config.toml.
constexpr const char* kConfigTomlMark = "# Written by distca train: what was run.";
/// In the header of a run's model.safetensors, beside "steps".
constexpr const char* kProducerKey = "producer";
constexpr const char* kProducer = "distca train";

}  // namespace distca
