#include "distca/report/run_folder.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/base/json.h"
#include "distca/checkpoint/folder.h"
#include "distca/checkpoint/safetensors.h"

namespace distca {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigToml = "config.toml";
constexpr const char* kMetrics = "metrics.jsonl";
constexpr const char* kWeights = "model.safetensors";
constexpr const char* kConfigJson = "config.json";
constexpr std::array kNames = {kConfigToml, kMetrics, kWeights, kConfigJson};
// Staged: whole, to be renamed.
constexpr const char* kNewWeights = ".model.safetensors.new";
constexpr const char* kNewConfigJson = ".config.json.new";
// It says whose the weights are while a run holds the folder that has not saved its own.
constexpr const char* kOlderWeights = ".older_weights";
constexpr const char* kOfOtherRun = "of another run\n";
constexpr const char* kGivenUp = "of steps that this run has given up\n";
constexpr const char* kGoesOn = "of the step that this run goes on from\n";

/// The status of a path itself, not of what it links to. Returns nothing if nothing is there.
std::optional<struct stat> status_of(const fs::path& path) {
  struct stat status {};
  if (lstat(path.c_str(), &status) == 0) return status;
  if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
  throw os_error(path, "cannot be read");
}

std::string day_of(const struct stat& status) {
  return fmt::format("{:%Y-%m-%d}", fmt::localtime(status.st_mtim.tv_sec));
}

/// The step of a run's line of metrics.jsonl. Returns nothing if it is no such line.
std::optional<int64_t> step_of(std::string_view line) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("loss") || !json.contains("imbalance_after")) return {};
  const auto step = json.find("step");
  if (step == json.end() || !step->is_number_integer()) return {};
  return step->get<int64_t>();
}

/// The number of steps in a run's metrics.jsonl. Returns nothing if the file is no run's.
std::optional<int64_t> steps_of(const fs::path& path) {
  constexpr int64_t kMost = 1 << 20;  // bytes of its begin and of its end
  const PiecewiseFile file(path);
  std::string first(std::min(file.size(), kMost), '\0'), last = first;
  file.read(0, std::as_writable_bytes(std::span(first)));
  if (first.empty()) return 0;  // killed before its first step
  if (!step_of(first.substr(0, first.find('\n')))) return {};
  file.read(file.size() - std::ssize(last), std::as_writable_bytes(std::span(last)));
  const size_t end = last.rfind('\n');
  if (end == std::string::npos || end == 0) return 1;
  const size_t before = last.rfind('\n', end - 1);
  const size_t begin = before == std::string::npos ? 0 : before + 1;
  return step_of(std::string_view(last).substr(begin, end - begin)).value_or(1);
}

Error foreign(const fs::path& folder, const char* name, std::string_view why) {
  return Error(ErrorKind::kConfig,
               "{}: {}; it is left alone, with train.overwrite as well: name another "
               "train.output_dir",
               (folder / name).string(), why);
}

/// Returns the words of kOlderWeights in a folder, or "" if the weights are the run's own.
std::string said_of_weights(const fs::path& folder) {
  const fs::path mark = folder / kOlderWeights;
  if (!status_of(mark)) return "";
  const std::string said = read_file(mark);
  return said == kOfOtherRun || said == kGoesOn ? said : kGivenUp;
}

/// Puts staged files in place, or away. Both are staged before the first is renamed, the weights
/// first: a staged config.json says that nothing is missing.
void finish_replacement(const fs::path& folder) {
  const fs::path weights = folder / kNewWeights, config_json = folder / kNewConfigJson;
  if (!status_of(config_json)) {
    unlink(weights.c_str());
    return;
  }
  const auto put = [&](const fs::path& staged, const char* name) {
    if (status_of(staged) && rename(staged.c_str(), (folder / name).c_str()) != 0)
      throw os_error(folder / name, "cannot be put in place");
  };
  put(weights, kWeights);
  unlink((folder / kOlderWeights).c_str());  // while a staged config.json has this done again
  put(config_json, kConfigJson);
  sync_folder(folder);
}

/// Temporary files of killed runs, where the file system has none without a name. Under the lock
/// nobody writes to them.
void remove_temporaries(const fs::path& folder) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const std::string file = entry.path().filename();
    if (file.starts_with(kSeenFile)) unlink(entry.path().c_str());
    for (const char* name : kNames) {
      const std::string start = fmt::format(".{}.", name);
      if (!file.starts_with(start) || !file.ends_with(".tmp")) continue;
      const std::string_view id =
          std::string_view(file).substr(start.size(), file.size() - start.size() - 4);
      if (!id.empty() && id.find_first_not_of("0123456789") == std::string_view::npos)
        unlink(entry.path().c_str());
    }
  }
}

/// False: another process has it for longer than a look takes.
bool lock_file(int descriptor) {
  // Seconds: other starts look at the folder, too, and a run that was killed takes a while to be
  // gone where the machine is busy.
  constexpr double kLooks = 5;
  const Stopwatch watch;
  while (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return true;  // there are no locks here
    if (watch.seconds() > kLooks) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

/// The steps after which a run has written these weights. Returns nothing if no run has.
std::optional<int64_t> steps_of_weights(const fs::path& weights) {
  const SafetensorsMetadata said = read_safetensors_metadata(weights);
  const auto producer = said.find(kProducerKey), steps = said.find("steps");
  if (producer == said.end() || producer->second != kProducer) return {};
  return steps == said.end() ? 0 : std::atoll(steps->second.c_str());
}

Error in_use(const fs::path& folder) {
  return Error(ErrorKind::kConfig,
               "{}: another run is writing here: name another train.output_dir, or wait for its "
               "end",
               folder.string());
}

/// The contents of a folder when it was looked at.
struct FoundRun {
  bool has_weights = false;
  bool has_checkpoints = false;  // complete ones
  int64_t steps = 0;             // steps of the weights, if there are any, else of metrics.jsonl
  std::string date;              // day of their last change, as 2026-11-22; empty without a run
  int64_t last_step = 0;         // the highest that the run's own weights or checkpoints have

  std::string describe() const {
    return fmt::format("({} step{}, {})", steps, steps == 1 ? "" : "s", date);
  }
};

/// Throws Error(kConfig) naming the file that no run made; Error(kIo) if the folder cannot be read.
FoundRun find_run(const fs::path& folder) {
  std::array<std::optional<struct stat>, kNames.size()> status;
  for (size_t i = 0; i < kNames.size(); ++i) {
    status[i] = status_of(folder / kNames[i]);
    if (status[i] && !S_ISREG(status[i]->st_mode))
      throw foreign(folder, kNames[i], "there is something that is not a file");
  }
  const auto& [config_toml, metrics, weights, config_json] = status;
  constexpr const char* kForeign = "no run of distca, or one of an older version, made this file";
  FoundRun found;
  if (weights) {
    const std::optional<int64_t> steps = steps_of_weights(folder / kWeights);
    if (!steps) throw foreign(folder, kWeights, kForeign);
    found = {.has_weights = true, .steps = *steps, .date = day_of(*weights)};
  } else if (config_json) {
    throw foreign(folder, kConfigJson, kForeign);
  }
  if (metrics) {
    const std::optional<int64_t> steps = steps_of(folder / kMetrics);
    if (!steps) throw foreign(folder, kMetrics, kForeign);
    if (!weights) found = {.steps = *steps, .date = day_of(*metrics)};
  }
  if (config_toml && !metrics && !weights) {
    throw foreign(folder, kConfigToml, "no run left it here: metrics.jsonl would be beside it");
  }
  if (config_toml && !read_file(folder / kConfigToml).starts_with(kConfigTomlMark))
    throw foreign(folder, kConfigToml, kForeign);
  const std::vector<CheckpointPlace> checkpoints = complete_checkpoints(folder);
  found.has_checkpoints = !checkpoints.empty();
  const std::string said = said_of_weights(folder);
  if (found.has_weights && (said.empty() || said == kGoesOn)) found.last_step = found.steps;
  if (found.has_checkpoints) found.last_step = std::max(found.last_step, checkpoints.back().step);
  return found;
}

/// Returns the contents of a folder if a run may take it. Throws Error(kConfig) otherwise.
FoundRun check_may_take(const fs::path& folder, const TakeFolder& how) {
  FoundRun found = find_run(folder);
  DISTCA_THROW_IF(
      !how.overwrite && !how.trains && found.last_step > how.goes_on_after, ErrorKind::kConfig,
      "--resume: no step is left to train after step {}, and {} has {} steps, of which "
      "those behind it would go: distca export writes a checkpoint's weights elsewhere, "
      "train.overwrite=true gives up the steps",
      how.goes_on_after, folder.string(), found.last_step);
  if (how.overwrite || how.goes_on_after > 0) return found;
  DISTCA_THROW_IF(found.has_checkpoints, ErrorKind::kConfig,
                  "{} holds a run with checkpoints {}: go on from them with --resume, name another "
                  "train.output_dir, or set train.overwrite=true",
                  folder.string(), found.describe());
  DISTCA_THROW_IF(found.has_weights, ErrorKind::kConfig,
                  "{} holds a run already {}: name another train.output_dir or set "
                  "train.overwrite=true",
                  folder.string(), found.describe());
  return found;
}

}  // namespace

void check_run_folder(const fs::path& folder, const TakeFolder& how) {
  // Where there is no such file there is no run.
  const FileDescriptor lock(open((folder / kMetrics).c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
  if (lock.get() >= 0) {
    if (!lock_file(lock.get())) throw in_use(folder);
    finish_replacement(folder);
  }
  check_may_take(folder, how);
}

RunFolder::RunFolder(fs::path folder, const TakeFolder& how)
    : folder_(std::move(folder)), how_(how) {
  check_may_take(folder_, how);
  std::error_code ignored;  // if the look fails, making the folder fails, too, and says why
  DISTCA_THROW_IF(fs::exists(folder_, ignored) && !fs::is_directory(folder_, ignored),
                  ErrorKind::kConfig, "train.output_dir = {}: it is a file, a folder is wanted",
                  folder_.string());
  made_folder_ = create_folder(folder_);
  take_lock();
  finish_replacement(folder_);
  const FoundRun found = check_may_take(folder_, how);  // now that nobody else writes
  had_weights_ = found.has_weights;
  if (had_weights_) {
    // Another branch of the run may come to the step of weights that were given up.
    said_of_weights_ = said_of_weights(folder_);
    if (how.goes_on_after == 0) {
      said_of_weights_ = kOfOtherRun;
    } else if (said_of_weights_.empty() || said_of_weights_ == kGoesOn) {
      said_of_weights_ = found.steps == how.goes_on_after ? kGoesOn : kGivenUp;
    }
  }
  if (how.goes_on_after == 0 && (had_weights_ || found.steps > 0)) {
    replaces_ = fmt::format("replacing the {}run in {} {}",
                            had_weights_ || found.has_checkpoints ? "" : "unfinished ",
                            folder_.string(), found.describe());
  }
  if (how_.goes_on_after > 0 && found.last_step > how_.goes_on_after) {
    replaces_ =
        fmt::format("{} has {} steps; those after step {} go once this run has saved its own",
                    folder_.string(), found.last_step, how_.goes_on_after);
  }
  remove_temporaries(folder_);
  remove_unfinished_checkpoints(folder_);
}

/// Takes the lock on metrics.jsonl, which is made if need be.
void RunFolder::take_lock() {
  const fs::path metrics = metrics_path();
  while (true) {
    made_metrics_ = !status_of(metrics);
    lock_ = FileDescriptor(open(metrics.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (lock_.get() < 0) throw os_error(metrics, "cannot be written");
    if (!lock_file(lock_.get())) throw in_use(folder_);
    // A run that did not begin takes the file that it made with it.
    struct stat mine {};
    const std::optional<struct stat> there = status_of(metrics);
    if (fstat(lock_.get(), &mine) == 0 && there && there->st_ino == mine.st_ino &&
        there->st_dev == mine.st_dev) {
      return;
    }
  }
}

RunFolder::~RunFolder() {
  config_json_.reset();
  weights_.reset();
  if (!began_) {
    if (made_metrics_) unlink(metrics_path().c_str());
    if (made_folder_) rmdir(folder_.c_str());
  }
}

void RunFolder::reserve(int64_t weights_bytes, const std::string& config_json) {
  weights_.emplace(folder_ / kWeights);
  weights_->reserve(weights_bytes);
  config_json_.emplace(folder_ / kConfigJson);
  config_json_->reserve(static_cast<int64_t>(config_json.size()));
  config_json_->write(config_json);
}

void RunFolder::begin(const std::string& config_toml) {
  const std::string text = fmt::format("{}\n{}", kConfigTomlMark, config_toml);
  AtomicFile file(folder_ / kConfigToml);
  file.reserve(std::ssize(text));
  file.write(text);
  began_ = true;
  if (had_weights_) write_file_atomically(folder_ / kOlderWeights, said_of_weights_);
  // In this order: who is killed in between goes on from a step that metrics.jsonl still has.
  set_aside_checkpoints(folder_, how_.goes_on_after);
  cut_metrics();
  file.commit();
}

/// After the line of the step that the run goes on from, or before the first. Steps ascend, so what
/// is to go is found from the end.
void RunFolder::cut_metrics() {
  size_t size = 0;
  if (how_.goes_on_after > 0) {
    const MappedFile file(metrics_path());
    const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                                file.bytes().size());
    size = text.rfind('\n') + 1;  // text without a line end is no line
    while (size > 0) {
      const size_t begin = size == 1 ? 0 : text.rfind('\n', size - 2) + 1;
      const std::string_view line = text.substr(begin, size - 1 - begin);
      if (step_of(line).value_or(INT64_MAX) <= how_.goes_on_after) break;
      size = begin;
    }
  }
  if (ftruncate(lock_.get(), static_cast<off_t>(size)) != 0)
    throw os_error(metrics_path(), "cannot be written");
}

bool RunFolder::replaces_model() const { return said_of_weights_ == kOfOtherRun; }

fs::path RunFolder::metrics_path() const { return folder_ / kMetrics; }

void RunFolder::save(const std::function<void(AtomicFile&)>& write_weights,
                     const std::function<void()>& write_others) {
  try {
    write_weights(*weights_);
    weights_->commit_as(folder_ / kNewWeights);
    write_others();
    config_json_->commit_as(folder_ / kNewConfigJson);
  } catch (const Error& error) {
    unlink((folder_ / kNewWeights).c_str());
    const std::vector<CheckpointPlace> checkpoints = complete_checkpoints(folder_);
    throw Error(error.kind(), "{}; the weights are not saved: {}{}", error.what(),
                checkpoints.empty() ? "the run has no checkpoint, and they are lost"
                                    : fmt::format("--resume goes on from the checkpoint of step {}",
                                                  checkpoints.back().step),
                had_weights_ ? "; those of the run before are as they were" : "");
  }
  finish_replacement(folder_);
  remove_set_aside(folder_);
}

bool holds_model_of_other_run(const fs::path& run) { return said_of_weights(run) == kOfOtherRun; }

NewestWeights newest_weights(const fs::path& folder) {
  std::error_code ignored;
  const bool has_file = fs::exists(folder / kWeights, ignored);
  const std::vector<CheckpointPlace> own = complete_checkpoints(folder);
  if (!has_file && !fs::exists(folder / "model.safetensors.index.json", ignored)) {
    try {
      const CheckpointPlace newest = find_checkpoints(folder).places.back();
      return {.checkpoint = newest.folder, .steps = newest.step};
    } catch (const Error& error) {
      throw Error(error.kind(),
                  "{}: holds no weights of Hugging Face and no complete checkpoint: name "
                  "a run's folder or a checkpoint's",
                  folder.string());
    }
  }
  const std::optional<int64_t> steps =
      has_file ? steps_of_weights(folder / kWeights) : std::nullopt;
  const std::string said = said_of_weights(folder);
  const bool is_older = steps && !said.empty() && said != kGoesOn;
  DISTCA_THROW_IF(
      is_older && own.empty(), ErrorKind::kCheckpoint,
      "{}: its weights are of a run before, and the present one has saved none yet: wait "
      "for a checkpoint",
      folder.string());
  if (is_older || (steps && !own.empty() && *steps < own.back().step))
    return {.checkpoint = own.back().folder, .steps = own.back().step};
  return {.steps = steps};
}

}  // namespace distca
