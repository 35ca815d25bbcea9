#include "distca/checkpoint/folder.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <system_error>

#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/base/text.h"

namespace distca {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFolder = "checkpoints";
constexpr const char* kOldFolder = "checkpoints.old";
constexpr const char* kUnfinished = ".tmp";
constexpr const char* kStep = "step_";
constexpr const char* kBadStep = "bad_step.txt";

std::string step_name(int64_t step) { return fmt::format("{}{:06}", kStep, step); }

/// The step of a folder's name. Returns nothing if it is no checkpoint's.
std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kStep)) return {};
  const auto step = to_number<int64_t>(name.substr(std::string_view(kStep).size()));
  return step && step_name(*step) == name ? step : std::nullopt;
}

/// Likewise of step_000100.2, a second one of its step among those that were set aside.
std::optional<int64_t> step_of_set_aside(const fs::path& name) {
  const std::string number = name.extension();
  const bool is_numbered =
      number.size() > 1 && number.find_first_not_of("0123456789", 1) == std::string::npos;
  return step_of(is_numbered ? name.stem() : name);
}

std::vector<CheckpointPlace> list(const fs::path& folder) {
  std::vector<CheckpointPlace> places;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const fs::path name = entry.path().filename();
    const std::optional<int64_t> step =
        folder.filename() == kOldFolder ? step_of_set_aside(name) : step_of(name);
    // A folder with this name that has no index is damaged, which its reader says.
    if (step && entry.is_directory(ignored))
      places.push_back({.folder = entry.path(),
                        .step = *step,
                        .before_bad_step = fs::exists(entry.path() / kBadStep, ignored)});
  }
  std::ranges::sort(places, {}, &CheckpointPlace::step);
  return places;
}

void move_folder(const fs::path& from, const fs::path& to) {
  if (rename(from.c_str(), to.c_str()) != 0) throw os_error(to, "cannot be put in place");
}

/// Others of its step that were set aside before stay: a run may go on from them.
void set_aside(const fs::path& run, const fs::path& checkpoint) {
  const fs::path first = run / kOldFolder / checkpoint.filename();
  create_folder(first.parent_path());
  fs::path free = first;
  for (int number = 2; fs::exists(free); ++number)
    free = fmt::format("{}.{}", first.string(), number);
  move_folder(checkpoint, free);
}

/// Under a name that nobody reads first: what is half removed must not look complete. Nothing
/// happens if it has gone meanwhile.
void remove_folder(const fs::path& folder) {
  fs::path unfinished = folder;
  if (folder.extension() != kUnfinished) {
    unfinished += kUnfinished;
    std::error_code ignored;
    fs::remove_all(unfinished, ignored);
    if (rename(folder.c_str(), unfinished.c_str()) != 0 && errno != ENOENT)
      throw os_error(folder, "cannot be removed");
  }
  std::error_code code;
  fs::remove_all(unfinished, code);
  DISTCA_THROW_IF(code, ErrorKind::kIo, "{}: cannot be removed: {}", unfinished.string(),
                  code.message());
}

/// step_000100.2.tmp, of a save that was given up.
bool is_given_up(const fs::path& name) {
  const fs::path stem = name.stem();
  return name.extension() == kUnfinished && stem.has_extension() &&
         step_of(stem.stem().string()).has_value();
}

/// Or step_000100.tmp.
bool is_unfinished(const fs::path& name) {
  return is_given_up(name) ||
         (name.extension() == kUnfinished && step_of(name.stem().string()).has_value());
}

template <typename Named>
void remove_named(const fs::path& folder, Named is_named) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    if (is_named(entry.path().filename())) remove_folder(entry.path());
  }
}

}  // namespace

fs::path checkpoints_folder(const fs::path& run) { return run / kFolder; }

bool is_checkpoint_of(const fs::path& run, const fs::path& checkpoint) {
  std::error_code ignored;
  return fs::equivalent(fs::canonical(checkpoint, ignored).parent_path(), run / kFolder, ignored);
}

std::vector<CheckpointPlace> complete_checkpoints(const fs::path& run) {
  return list(run / kFolder);
}

std::vector<CheckpointPlace> old_checkpoints(const fs::path& run) { return list(run / kOldFolder); }

FoundCheckpoints find_checkpoints(const fs::path& path) {
  std::error_code ignored;
  const fs::path whole = fs::weakly_canonical(path / ".", ignored);
  const std::optional<int64_t> step = step_of_set_aside(whole.filename());
  if (step || fs::is_regular_file(path / kIndexFile, ignored))
    return {.places = {{.folder = path, .step = step.value_or(0)}}};
  FoundCheckpoints found{.run = path, .places = complete_checkpoints(path)};
  if (found.places.empty() && whole.filename() == kFolder)
    found = {.run = whole.parent_path(), .places = list(path)};
  DISTCA_THROW_IF(
      found.places.empty(), ErrorKind::kCheckpoint,
      "{}: holds no complete checkpoint: name a run's folder or a checkpoint's, such as "
      "RUN/{}/{}",
      path.string(), kFolder, step_name(100));
  return found;
}

fs::path unfinished_checkpoint(const fs::path& run, int64_t step) {
  return run / kFolder / (step_name(step) + kUnfinished);
}

void mark_bad_step(const fs::path& run, int64_t step) {
  write_file_atomically(unfinished_checkpoint(run, step) / kBadStep,
                        "A bad step followed this state, or was its last: checkpoint.keep_last "
                        "does not count it.\n");
}

std::string describe_weights(const fs::path& checkpoint, int64_t step) {
  std::error_code ignored;
  const bool is_marked = fs::exists(checkpoint / kBadStep, ignored);
  return fmt::format("{}: the weights after step {}{}", checkpoint.string(), step,
                     is_marked ? ", whose last or next step was bad, so they may be spoilt" : "");
}

void complete_checkpoint(const fs::path& run, const CheckpointIndex& index) {
  const fs::path unfinished = unfinished_checkpoint(run, index.step);
  write_file_atomically(unfinished / kIndexFile, canonical_json(to_json(index)));
  const fs::path folder = run / kFolder / step_name(index.step);
  // One of the same step is none that this run has gone on from.
  if (fs::exists(folder)) set_aside(run, folder);
  move_folder(unfinished, folder);
  sync_folder(run / kFolder);
  sync_folder(run);
}

void remove_unfinished_checkpoints(const fs::path& run) {
  for (const char* const folder : {kFolder, kOldFolder}) remove_named(run / folder, is_unfinished);
}

void give_up_checkpoint(const fs::path& run, int64_t step) {
  const fs::path unfinished = unfinished_checkpoint(run, step);
  if (!fs::exists(unfinished)) return;
  fs::path given_up;
  for (int number = 1; given_up.empty() || fs::exists(given_up); ++number)
    given_up = run / kFolder / fmt::format("{}.{}{}", step_name(step), number, kUnfinished);
  move_folder(unfinished, given_up);
}

std::optional<CheckpointPlace> newest_good(const fs::path& run, int64_t step) {
  std::vector<CheckpointPlace> places = complete_checkpoints(run);
  std::erase_if(places,
                [&](const auto& place) { return place.before_bad_step || place.step > step; });
  return places.empty() ? std::nullopt : std::optional(places.back());
}

void remove_given_up(const fs::path& run) { remove_named(run / kFolder, is_given_up); }

void remove_old_checkpoints(const fs::path& run, int64_t step, int64_t keep_last,
                            int64_t keep_every) {
  if (keep_last == 0) return;
  std::vector<CheckpointPlace> places = complete_checkpoints(run);
  std::erase_if(places, [&](const auto& place) { return place.step > step; });
  int64_t later = 0;  // that count
  for (; !places.empty(); places.pop_back()) {
    const CheckpointPlace& place = places.back();
    const bool stays = keep_every > 0 && place.step % keep_every == 0;
    if (place.before_bad_step ? later > 0 : later >= keep_last && !stays)
      remove_folder(place.folder);
    if (!place.before_bad_step) ++later;
  }
}

void set_aside_checkpoints(const fs::path& run, int64_t step) {
  for (const CheckpointPlace& place : complete_checkpoints(run)) {
    if (place.step > step) set_aside(run, place.folder);
  }
}

void remove_set_aside(const fs::path& run) {
  for (const CheckpointPlace& place : old_checkpoints(run)) remove_folder(place.folder);
  std::error_code ignored;
  fs::remove(run / kOldFolder, ignored);
}

}  // namespace distca
