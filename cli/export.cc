// distca export: the weights of a checkpoint as a run's end writes them, for Hugging Face.

#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/options.h"
#include "cli/verbs.h"
#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/base/text.h"
#include "distca/batch/tokenizer_files.h"
#include "distca/checkpoint/folder.h"
#include "distca/checkpoint/reader.h"
#include "distca/checkpoint/safetensors.h"
#include "distca/train/run_folder.h"

namespace distca::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWeights = "model.safetensors";
constexpr const char* kConfigJson = "config.json";

struct ExportOptions {
  fs::path source, out;
  bool overwrite = false;
};

/// Folders on the way to a path that are not there yet. What is empty of them when this is
/// destroyed is removed: after a failure, the file system is as it was.
class MissingFolders {
 public:
  explicit MissingFolders(const fs::path& path) {
    std::error_code ignored;
    for (fs::path at = fs::absolute(path).lexically_normal();
         at.has_relative_path() && !fs::exists(fs::symlink_status(at, ignored));
         at = at.parent_path())
      innermost_first_.push_back(at);
  }
  ~MissingFolders() {
    std::error_code ignored;
    for (const fs::path& folder : innermost_first_) fs::remove(folder, ignored);
  }
  MissingFolders(const MissingFolders&) = delete;
  MissingFolders& operator=(const MissingFolders&) = delete;

 private:
  std::vector<fs::path> innermost_first_;
};

fs::path checkpoint_of(const fs::path& source) {
  std::error_code ignored;
  DISTCA_THROW_IF(!fs::exists(source / kIndexFile, ignored) &&
                      complete_checkpoints(source).empty() &&
                      fs::exists(source / kWeights, ignored),
                  ErrorKind::kCheckpoint,
                  "{}: holds no checkpoint, and needs none: its weights are in {} already",
                  source.string(), (source / kWeights).string());
  return find_checkpoints(source).newest();
}

/// Writes, but does not commit, with no more than one tensor in memory.
void write_weights(const CheckpointReader& reader, AtomicFile& file) {
  const CheckpointIndex& index = reader.index();
  const SafetensorsMetadata metadata = {{kProducerKey, kProducer},
                                        {"steps", std::to_string(index.step)}};
  file.reserve(safetensors_bytes(index.tensors, metadata));
  file.write(safetensors_header(index.tensors, metadata));
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < index.tensors.size(); ++i) {
    bytes.resize(index.tensors[i].bytes());
    reader.read(static_cast<int64_t>(i), StatePart::kWeight, bytes);
    file.write(bytes);
  }
}

/// What goes beside the weights, and in words where the tokenizer is from.
struct Beside {
  FilesByName files;
  std::string tokenizer;
};

/// From the data set that the run was trained on, if it is where it was.
Beside beside_weights(const CheckpointIndex& index) {
  const auto recorded = index.config.find("data.prefix");
  std::string prefix = recorded == index.config.end() ? "" : recorded->second;
  std::erase(prefix, '\'');  // the value is TOML
  try {
    const DataBlend data(prefix);
    if (data.summary() != index.data)
      return {.tokenizer = fmt::format("no tokenizer: {} is not the data of the run now", prefix)};
    FilesByName files = files_beside_weights(data);
    const bool known = files.contains("tokenizer.json");
    return {.files = std::move(files),
            .tokenizer = known ? "the tokenizer of " + prefix
                               : fmt::format("no tokenizer: {} has none beside it", prefix)};
  } catch (const Error& error) {
    return {.tokenizer = fmt::format("no tokenizer: {}", error.what())};
  }
}

void export_weights(const ExportOptions& options) {
  const fs::path folder = checkpoint_of(options.source);
  const CheckpointReader reader(folder);
  const CheckpointIndex& index = reader.index();
  const Beside beside = beside_weights(index);
  std::vector<fs::path> made = {options.out / kWeights, options.out / kConfigJson};
  for (const auto& [name, contents] : beside.files) made.push_back(options.out / name);
  check_outputs(made, options.overwrite);
  const MissingFolders missing(options.out);
  AtomicFile weights(made[0]), config_json(made[1]);
  config_json.write(index.hugging_face.dump(2) + "\n");
  write_weights(reader, weights);
  weights.commit();
  config_json.commit();
  for (const auto& [name, contents] : beside.files)
    write_file_atomically(options.out / name, contents);
  int64_t parameters = 0;
  for (const StoredTensor& tensor : index.tensors) parameters += tensor.numel();
  fmt::print(
      "{}: the weights after step {}\n  {}  weights, Hugging Face names ({} parameters)\n"
      "  {}\n  {}\n",
      folder.string(), index.step, made[0].string(), with_thousands(parameters), made[1].string(),
      beside.tokenizer);
}

}  // namespace

void add_export(CLI::App& app) {
  auto options = std::make_shared<ExportOptions>();
  CLI::App* verb =
      app.add_subcommand("export", "Write a checkpoint's weights as Hugging Face reads them");
  verb->add_option("source", options->source, "A run, whose newest is taken, or a checkpoint")
      ->required();
  verb->add_option("--out", options->out,
                   "Folder of model.safetensors, config.json and the tokenizer; it is made")
      ->required();
  verb->add_flag("--overwrite", options->overwrite, "Replace files of these names");
  verb->footer("Example:  distca export runs/mine --out exported");
  verb->callback([options] { export_weights(*options); });
}

}  // namespace distca::cli
