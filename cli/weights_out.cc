#include "cli/weights_out.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <system_error>
#include <utility>

#include "cli/options.h"
#include "distca/base/text.h"
#include "distca/batch/tokenizer_files.h"
#include "distca/model/hugging_face.h"

namespace distca::cli {
namespace {

/// `dtype` is one that add_options() accepts.
WeightsType type_of(const std::string& dtype) {
  if (dtype.empty()) return WeightsType::kAsGiven;
  return dtype == "float32"   ? WeightsType::kFloat32
         : dtype == "float16" ? WeightsType::kFloat16
                              : WeightsType::kBFloat16;
}

}  // namespace

void WeightsOut::add_options(CLI::App& verb) {
  verb.add_option("--out", out_, "Folder of weights, config.json and the tokenizer, which is made")
      ->required();
  number_type(verb, "--dtype", dtype_, {"bfloat16", "float16", "float32"},
              "Number type of the weights; without it, they keep theirs, mostly float32");
  number(verb, "--max-shard-gb", max_shard_gb_, 1e-6, 1e6,
         "Divide the weights into files of at most so many GB (10^9 bytes); without it, one file");
  verb.add_flag("--overwrite", overwrite_, "Replace the model that the folder holds");
}

void WeightsOut::write(const std::string& begin, const ModelToWrite& model) const {
  const auto most_bytes = std::llround(max_shard_gb_ * 1e9);
  const HuggingFaceWriter writer(out_, model.tensors,
                                 {.type = type_of(dtype_), .max_shard_bytes = most_bytes});
  std::vector<std::filesystem::path> touched = writer.touched();
  const bool replaces = std::ranges::any_of(touched, [](const auto& path) {
    std::error_code ignored;
    return std::filesystem::exists(path, ignored);
  });
  for (const auto& [name, text] : model.contents.beside) touched.push_back(out_ / name);
  check_outputs(touched, overwrite_);
  HuggingFaceWriter::Contents contents = model.contents;
  const LlamaConfig shape = parse_hugging_face_config(contents.config, "config.json");
  contents.config = with_eos_token_id(with_keys_of_all_versions(std::move(contents.config), shape),
                                      contents.beside);
  std::vector<std::string> others;  // the model before had them
  if (replaces) others = files_of_other_tokenizer(out_, contents.beside);
  writer.write(contents, model.read, [&] { set_tokenizer_aside(out_, others); });
  int64_t parameters = 0;
  for (const StoredTensor& tensor : model.tensors) parameters += tensor.numel();
  const size_t shards = writer.num_shards();
  fmt::print("{}\n  {}  weights{}, Hugging Face names ({} parameters, {})\n  {}\n", begin,
             writer.weights().string(), shards > 1 ? fmt::format(" in {} files", shards) : "",
             with_thousands(parameters), writer.type_name(), (out_ / "config.json").string());
  if (!others.empty())
    fmt::print("  renamed to *{}, of the model before: {}\n", kAside, fmt::join(others, ", "));
  if (const std::string other = shape.read_otherwise(); !other.empty()) fmt::print("  {}\n", other);
}

}  // namespace distca::cli
