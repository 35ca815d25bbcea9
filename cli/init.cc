// distca init: a model of random weights, whose shape a config.json of Hugging Face says.

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/options.h"
#include "cli/verbs.h"
#include "cli/weights_out.h"
#include "distca/base/integers.h"
#include "distca/base/json.h"
#include "distca/base/normal.h"
#include "distca/batch/tokenizer_files.h"
#include "distca/model/hugging_face.h"
#include "distca/model/weight_table.h"

namespace distca::cli {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kAnySeed = int64_t{1} << 62;  // the limit of train.seed, too

struct InitOptions {
  fs::path hf_config;
  int64_t seed = 1;
  WeightsOut out;
};

void draw(const Weight& weight, int64_t seed, std::span<std::byte> bytes) {
  const std::span values(reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float));
  for (int64_t chunk = 0; chunk < ceil_div(weight.numel(), kNormalChunk); ++chunk)
    draw_initial_values(weight, static_cast<uint64_t>(seed), chunk, values);
}

void init(const InitOptions& options) {
  std::error_code ignored;  // read_json() says why, if the path cannot be looked at
  const bool is_folder = fs::is_directory(options.hf_config, ignored);
  const fs::path file = is_folder ? options.hf_config / "config.json" : options.hf_config;
  const Json config = read_json(file, ErrorKind::kConfig);
  std::vector<std::string> notes;
  const LlamaConfig model = parse_hugging_face_config(config, file.string(), &notes);
  say_notes(notes);
  const std::vector<Weight> table = weight_table(model);
  std::vector<StoredTensor> tensors;
  for (const Weight& weight : table)
    tensors.push_back({.name = weight.name, .shape = weight.shape});
  FilesByName beside = is_folder ? read_tokenizer(options.hf_config) : FilesByName();
  const bool has_tokenizer = beside.contains(kTokenizerJson);
  options.out.write(fmt::format("random weights from the seed {}, of the shape of {}", options.seed,
                                file.string()),
                    {.tensors = std::move(tensors),
                     .contents = {.config = config, .beside = std::move(beside)},
                     .read = [&](size_t tensor, std::span<std::byte> bytes) {
                       draw(table[tensor], options.seed, bytes);
                     }});
  fmt::print("  {}\n", has_tokenizer ? "the tokenizer of " + options.hf_config.string()
                       : is_folder   ? "no tokenizer: the folder has none"
                                     : "no tokenizer: --hf-config names no folder");
}

}  // namespace

void add_init(CLI::App& app) {
  auto options = std::make_shared<InitOptions>();
  CLI::App* verb = app.add_subcommand(
      "init", "Write random weights of the shape that a config.json of Hugging Face says");
  verb->add_option("--hf-config", options->hf_config,
                   "The config.json, or its folder, whose tokenizer is then copied, too")
      ->required();
  number(*verb, "--seed", options->seed, 0, kAnySeed,
         "The weights are those with which a run of this train.seed begins");
  options->out.add_options(*verb);
  verb->footer("Example:  distca init --hf-config config.json --out models/fresh --dtype bfloat16");
  verb->callback([options] { init(*options); });
}

}  // namespace distca::cli
