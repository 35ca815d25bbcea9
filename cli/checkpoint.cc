// distca checkpoint: what a checkpoint holds, and whether it is whole.

#include <fmt/chrono.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <ctime>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/verbs.h"
#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/base/json.h"
#include "distca/base/text.h"
#include "distca/checkpoint/folder.h"
#include "distca/checkpoint/index.h"
#include "distca/checkpoint/reader.h"

namespace distca::cli {
namespace {

namespace fs = std::filesystem;

struct ShowOptions {
  fs::path folder;
  bool json = false, tensors = false;
};

/// A complete checkpoint of a run, as a look at its folder shows it.
struct OnDisk {
  CheckpointPlace place;
  int64_t bytes = 0;     // size of all its files
  std::time_t date = 0;  // when its index was written
};

OnDisk look_at(const CheckpointPlace& place) {
  OnDisk found{.place = place};
  for (const fs::directory_entry& file : fs::directory_iterator(place.folder))
    found.bytes += static_cast<int64_t>(file.file_size());
  struct stat status {};
  if (stat((place.folder / kIndexFile).c_str(), &status) != 0)
    throw os_error(place.folder / kIndexFile, "cannot be read", ErrorKind::kCheckpoint);
  found.date = status.st_mtim.tv_sec;
  return found;
}

std::string day_and_time(std::time_t date) {
  return fmt::format("{:%Y-%m-%d %H:%M}", fmt::localtime(date));
}

/// The facts that are shown of a path.
struct Shown {
  CheckpointIndex index;
  OnDisk on_disk;
  std::vector<OnDisk> of_run;  // all complete checkpoints, if the path is a run
  std::vector<CheckpointPlace> set_aside;
  int64_t num_parameters = 0;
  std::vector<std::map<std::string, int64_t>> files_of;  // [tensors] file -> pieces in it
};

Shown look(const fs::path& path) {
  const FoundCheckpoints found = find_checkpoints(path);
  Shown shown{.index = read_checkpoint_index(found.newest())};
  shown.on_disk = look_at({.folder = found.newest(), .step = shown.index.step});
  if (found.run) {
    for (const CheckpointPlace& place : found.places) shown.of_run.push_back(look_at(place));
    shown.set_aside = old_checkpoints(*found.run);
  }
  for (const StoredTensor& tensor : shown.index.tensors) shown.num_parameters += tensor.numel();
  shown.files_of.resize(shown.index.tensors.size());
  for (const StoredPiece& piece : shown.index.pieces) ++shown.files_of[piece.tensor][piece.file];
  return shown;
}

void print_tensors(const Shown& shown) {
  Table table({"tensor", "shape", "type", "files (pieces)"});
  for (size_t i = 0; i < shown.index.tensors.size(); ++i) {
    const StoredTensor& tensor = shown.index.tensors[i];
    std::vector<std::string> files;
    for (const auto& [file, pieces] : shown.files_of[i])
      files.push_back(fmt::format("{} ({})", file, pieces));
    table.add_row({tensor.name, fmt::format("[{}]", fmt::join(tensor.shape, ", ")),
                   std::string(long_name(tensor.type)), fmt::format("{}", fmt::join(files, ", "))});
  }
  fmt::print("\n{}", table.to_string());
}

void print_run(const Shown& shown, const fs::path& run) {
  Table table({"checkpoint", "step", "bytes", "date"});
  for (const OnDisk& found : shown.of_run) {
    table.add_row(
        {found.place.folder.string(), std::to_string(found.place.step), with_thousands(found.bytes),
         day_and_time(found.date) + (found.place.before_bad_step ? ", a bad step followed" : "")});
  }
  fmt::print("\n{}", table.to_string());
  if (shown.set_aside.empty()) return;
  std::vector<std::string> names;
  for (const CheckpointPlace& place : shown.set_aside) names.push_back(place.folder.filename());
  fmt::print(
      "Set aside: {} (in {}). A run that did not go on from there has begun in this folder;\n"
      "its first checkpoint removes them.\n",
      fmt::join(names, ", "), shown.set_aside.front().folder.parent_path().string());
}

void print(const Shown& shown, const ShowOptions& options) {
  const CheckpointIndex& index = shown.index;
  const auto steps = index.config.find("train.steps");
  fmt::print("{}\n", shown.on_disk.place.folder.string());
  const auto line = [](const char* what, const std::string& text) {
    fmt::print("  {:<13}{}\n", what, text);
  };
  line("step", fmt::format("{}{}; the optimizer made {}", index.step,
                           steps == index.config.end() ? "" : " of " + steps->second,
                           counted(index.updates, "update")));
  line("run", index.run_id.empty() ? "without an id" : index.run_id);
  line("saved", day_and_time(shown.on_disk.date));
  line("weights", fmt::format("{}, {}, each with AdamW's two moments",
                              counted(std::ssize(index.tensors), "tensor"),
                              counted(shown.num_parameters, "parameter")));
  line("size", fmt::format("{} in {} and the index", human_bytes(shown.on_disk.bytes),
                           counted(std::ssize(index.files), "file")));
  line("data", index.data.empty() ? "not recorded" : index.data);
  const char* label = "written with";
  for (const auto& [what, value] : index.machine) {
    if (!value.empty()) line(std::exchange(label, ""), fmt::format("{}: {}", what, value));
  }
  if (options.tensors) print_tensors(shown);
  if (!shown.of_run.empty()) print_run(shown, options.folder);
}

Json json_of(const OnDisk& found) {
  return {{"folder", found.place.folder.string()},
          {"step", found.place.step},
          {"bytes", found.bytes},
          {"date", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(found.date))}};
}

void print_json(const Shown& shown, const ShowOptions& options) {
  const CheckpointIndex& index = shown.index;
  Json json = json_of(shown.on_disk);
  json["updates"] = index.updates;
  json["run_id"] = index.run_id;
  json["machine"] = index.machine;
  json["config"] = index.config;
  json["data"] = index.data;
  json["num_tensors"] = index.tensors.size();
  json["num_parameters"] = shown.num_parameters;
  json["files"] = index.files;
  if (options.tensors) {
    json["tensors"] = Json::array();
    for (size_t i = 0; i < index.tensors.size(); ++i) {
      json["tensors"].push_back({{"name", index.tensors[i].name},
                                 {"type", long_name(index.tensors[i].type)},
                                 {"shape", index.tensors[i].shape},
                                 {"pieces_by_file", shown.files_of[i]}});
    }
  }
  if (!shown.of_run.empty()) {
    json["checkpoints"] = Json::array();
    for (const OnDisk& found : shown.of_run) json["checkpoints"].push_back(json_of(found));
    json["set_aside"] = Json::array();
    for (const CheckpointPlace& place : shown.set_aside)
      json["set_aside"].push_back({{"folder", place.folder.string()}, {"step", place.step}});
  }
  fmt::print("{}", canonical_json(json));
}

void show(const ShowOptions& options) {
  const Shown shown = look(options.folder);
  if (options.json) {
    print_json(shown, options);
  } else {
    print(shown, options);
  }
}

/// Reads all bytes of a checkpoint; says in one line what is there.
void check_one(const fs::path& folder) {
  const CheckpointReader reader(folder);
  reader.check();
  const CheckpointIndex& index = reader.index();
  int64_t bytes = 0;
  for (const auto& [_, size] : index.files) bytes += size;
  fmt::print("{}: whole ({}, {} in {}, {})\n", folder.string(),
             counted(std::ssize(index.tensors), "tensor"),
             counted(std::ssize(index.pieces), "piece"), counted(std::ssize(index.files), "file"),
             human_bytes(bytes));
}

/// One damaged checkpoint does not hide the others: the first fault is thrown at the end.
void check(const fs::path& path) {
  std::exception_ptr first;
  for (const CheckpointPlace& place : find_checkpoints(path).places) {
    try {
      check_one(place.folder);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kCheckpoint) throw;
      fmt::print("{}: damaged\n", place.folder.string());
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

void add_show(CLI::App& checkpoint) {
  auto options = std::make_shared<ShowOptions>();
  CLI::App* verb =
      checkpoint.add_subcommand("show", "Step, size, who wrote it; of a run, a list of all");
  verb->add_option("folder", options->folder, "A run, or a checkpoint such as step_000100")
      ->required();
  verb->add_flag("--tensors", options->tensors,
                 "Each tensor with shape, type and the files that hold its pieces");
  verb->add_flag("--json", options->json, "For machines");
  verb->footer("Example:  distca checkpoint show runs/mine");
  verb->callback([options] { show(*options); });
}

void add_check(CLI::App& checkpoint) {
  auto folder = std::make_shared<fs::path>();
  CLI::App* verb = checkpoint.add_subcommand(
      "check", "Compare every byte with its hash; exit code 2 if one is damaged");
  verb->add_option("folder", *folder, "A run, of which all are checked, or a checkpoint")
      ->required();
  verb->footer("Example:  distca checkpoint check runs/mine");
  verb->callback([folder] { check(*folder); });
}

}  // namespace

void add_checkpoint(CLI::App& app) {
  CLI::App* checkpoint =
      app.add_subcommand("checkpoint", "Checkpoints: show what one holds, check that it is whole");
  checkpoint->require_subcommand(1);
  checkpoint->footer(
      "Example:  distca checkpoint show runs/mine && distca checkpoint check runs/mine");
  add_show(*checkpoint);
  add_check(*checkpoint);
}

}  // namespace distca::cli
