// distca export: the weights of a checkpoint as a run's end writes them, for Hugging Face, or in
// another number type and in several files.

#include <algorithm>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/verbs.h"
#include "cli/weights_out.h"
#include "distca/base/error.h"
#include "distca/base/json.h"
#include "distca/batch/tokenizer_files.h"
#include "distca/checkpoint/folder.h"
#include "distca/checkpoint/reader.h"
#include "distca/checkpoint/safetensors.h"
#include "distca/model/hugging_face.h"
#include "distca/report/run_folder.h"

namespace distca::cli {
namespace {

namespace fs = std::filesystem;

struct ExportOptions {
  fs::path source;
  WeightsOut out;
};

/// The model that is exported, and in words where it and its tokenizer are from.
struct Export {
  ModelToWrite model;
  std::string from, tokenizer;
};

/// The files that go next to the weights, and in words where the tokenizer is from.
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
    const bool known = files.contains(kTokenizerJson);
    return {.files = std::move(files),
            .tokenizer = known ? "the tokenizer of " + prefix
                               : fmt::format("no tokenizer: {} has none beside it", prefix)};
  } catch (const Error& error) {
    return {.tokenizer = fmt::format("no tokenizer: {}", error.what())};
  }
}

Export of_checkpoint(const fs::path& folder) {
  const auto reader = std::make_shared<const CheckpointReader>(folder);
  const CheckpointIndex& index = reader->index();
  Beside beside = beside_weights(index);
  return {.model = {.tensors = index.tensors,
                    .contents = {.config = index.hugging_face,
                                 .metadata = {{kProducerKey, kProducer},
                                              {"steps", std::to_string(index.step)}},
                                 .beside = std::move(beside.files)},
                    .read =
                        [reader](size_t tensor, std::span<std::byte> bytes) {
                          reader->read(static_cast<int64_t>(tensor), StatePart::kWeight, bytes);
                        }},
          .from = describe_weights(folder, index.step),
          .tokenizer = std::move(beside.tokenizer)};
}

/// The export of a run whose newest weights are those of its end.
Export of_run(const fs::path& run) {
  const fs::path weights = run / kWeightsFile;
  const auto file = std::make_shared<const SafetensorsFile>(weights);
  std::vector<StoredTensor> tensors;
  for (const SafetensorsHeader::Entry& entry : file->tensors()) {
    DISTCA_THROW_IF(entry.tensor.type == ScalarType::kBFloat16, ErrorKind::kCheckpoint,
                    "{}: its weights are {} already: export a run or a checkpoint",
                    weights.string(), entry.tensor.type_name());
    tensors.push_back(entry.tensor);
  }
  HuggingFaceWeights(run, read_hugging_face_config(run));  // refuses what does not fit the shape
  FilesByName beside = read_tokenizer(run);
  const bool known = beside.contains(kTokenizerJson);
  return {.model = {.tensors = std::move(tensors),
                    .contents = {.config = read_json(run / "config.json", ErrorKind::kCheckpoint),
                                 .metadata = file->metadata(),
                                 .beside = std::move(beside)},
                    .read =
                        [file](size_t tensor, std::span<std::byte> bytes) {
                          std::ranges::copy(file->bytes(file->tensors()[tensor]), bytes.begin());
                        }},
          .from = fmt::format("{}: the weights of the run's end", weights.string()),
          .tokenizer = known ? "the tokenizer of " + run.string()
                             : fmt::format("no tokenizer: {} has none", run.string())};
}

void export_weights(const ExportOptions& options) {
  const fs::path& source = options.source;
  std::error_code ignored;
  const bool is_checkpoint = fs::exists(source / kIndexFile, ignored);
  const std::vector<CheckpointPlace> own =
      is_checkpoint ? std::vector<CheckpointPlace>() : complete_checkpoints(source);
  std::optional<NewestWeights> newest;
  if (!is_checkpoint && fs::exists(source / kWeightsFile, ignored)) newest = newest_weights(source);
  // A checkpoint of the last step serves as well, and may be wider.
  const bool is_of_end = newest && newest->checkpoint.empty() &&
                         (own.empty() || newest->steps.value_or(0) > own.back().step);
  DISTCA_THROW_IF(is_of_end && !options.out.changes_weights(), ErrorKind::kCheckpoint,
                  "{}: its weights are in {} already; --dtype and --max-shard-gb write them "
                  "anew",
                  source.string(), (source / kWeightsFile).string());
  // A write that is interrupted would lose them.
  fs::path run = fs::weakly_canonical(source / ".", ignored);
  if (is_checkpoint) run = run.parent_path();
  if (run == checkpoints_folder(run.parent_path())) run = run.parent_path();
  DISTCA_THROW_IF(
      fs::exists(run / kWeightsFile, ignored) && fs::equivalent(options.out.folder(), run, ignored),
      ErrorKind::kUsage,
      "--out {}: the weights of the exported run's end are there: name another folder",
      options.out.folder().string());
  const Export made = is_of_end ? of_run(source) : of_checkpoint(find_checkpoints(source).newest());
  options.out.write(made.from, made.model);
  fmt::print("  {}\n", made.tokenizer);
}

}  // namespace

void add_export(CLI::App& app) {
  auto options = std::make_shared<ExportOptions>();
  CLI::App* verb =
      app.add_subcommand("export", "Write a checkpoint's weights as Hugging Face reads them");
  verb->add_option("source", options->source, "A run, whose newest is taken, or a checkpoint")
      ->required();
  options->out.add_options(*verb);
  verb->footer("Example:  distca export runs/mine --out exported --dtype bfloat16");
  verb->callback([options] { export_weights(*options); });
}

}  // namespace distca::cli
