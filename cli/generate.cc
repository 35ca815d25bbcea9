// distca generate: what a model says after a prompt, on the CPU.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/options.h"
#include "cli/text_tokenizer.h"
#include "cli/verbs.h"
#include "distca/base/file.h"
#include "distca/base/json_field.h"
#include "distca/base/utf8.h"
#include "distca/checkpoint/folder.h"
#include "distca/checkpoint/safetensors.h"
#include "distca/model/hugging_face.h"
#include "distca/model/sampling.h"
#include "distca/report/run_folder.h"
#include "distca/train/decoder.h"
#include "distca/train/start_weights.h"

namespace distca::cli {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostTokens = int64_t{1} << 32;
constexpr int64_t kPartTokens = 1024;  // tokens of a prompt that are computed at a time

struct GenerateArguments {
  fs::path folder, logits;
  std::optional<std::string> text, ids;
  int64_t max_new_tokens = 128;
  Sampling sampling;
  int64_t seed = 1;
};

/// Tokens that stand for no text, as generation_config.json or config.json names them.
struct SpecialTokens {
  std::set<int64_t> ends;     // after which nothing follows
  bool before_prompt = true;  // true if a tokenizer may put a token before the prompt
};

SpecialTokens special_tokens(const fs::path& folder) {
  SpecialTokens result;
  for (const char* const name : {"config.json", "generation_config.json"}) {
    const fs::path file = folder / name;
    std::error_code ignored;
    if (!fs::exists(file, ignored)) continue;
    const Json json = read_json(file, ErrorKind::kConfig);
    const JsonField root(json, file.native(), ErrorKind::kConfig);
    root.expect(json.is_object(), "an object");
    const auto says_null = [&](const char* key) {
      return json.contains(key) && json[key].is_null();
    };
    // So says what a run writes: data prepare puts no such token before a document.
    if (json.contains("bos_token_id")) result.before_prompt = !says_null("bos_token_id");
    if (!json.contains("eos_token_id") || says_null("eos_token_id")) continue;
    const JsonField ends = root["eos_token_id"];
    result.ends.clear();
    if (json["eos_token_id"].is_array()) {
      for (const int64_t id : ends.integers(0)) result.ends.insert(id);
    } else {
      result.ends.insert(ends.integer(0));
    }
  }
  return result;
}

void check_arguments(const GenerateArguments& arguments) {
  DISTCA_THROW_IF(arguments.text.has_value() == arguments.ids.has_value(), ErrorKind::kUsage,
                  "give a text, or the --ids of one, and not both");
  DISTCA_THROW_IF(arguments.text && !is_utf8(*arguments.text), ErrorKind::kUsage,
                  "the text is not UTF-8");
  const fs::path& folder = arguments.folder;
  std::error_code ignored;
  DISTCA_THROW_IF(
      !fs::exists(folder / "config.json", ignored) &&
          (fs::exists(folder / kIndexFile, ignored) || !complete_checkpoints(folder).empty()),
      ErrorKind::kCheckpoint,
      "{}: its weights are in a checkpoint alone: distca export {} --out FOLDER writes a folder to "
      "generate from",
      folder.string(), folder.string());
  if (!fs::exists(folder / kWeightsFile, ignored)) return;  // there are several, or none
  const NewestWeights newest = newest_weights(folder);
  DISTCA_THROW_IF(
      !newest.checkpoint.empty(), ErrorKind::kCheckpoint,
      "{}: its newest weights, after step {}, are in a checkpoint alone: distca export {} --out "
      "FOLDER writes a folder to generate from",
      folder.string(), *newest.steps, folder.string());
}

/// The ids of the prompt, and how many tokens there may be with those that follow.
struct Prompt {
  std::vector<int64_t> ids;
  int64_t most = 0;
  bool is_cut = false;  // because the model has no more positions
};

Prompt read_prompt(const GenerateArguments& arguments, const LlamaConfig& model,
                   TextTokenizer& tokenizer) {
  Prompt prompt{.ids = tokenizer.ids(arguments.ids ? *arguments.ids : *arguments.text)};
  DISTCA_THROW_IF(prompt.ids.empty(), ErrorKind::kUsage, "the prompt has no token");
  const int64_t largest = std::ranges::max(prompt.ids);
  DISTCA_THROW_IF(largest >= model.vocab_size, ErrorKind::kUsage,
                  "token id {} is not in the model's vocabulary: vocab_size = {}", largest,
                  model.vocab_size);
  const int64_t tokens = std::ssize(prompt.ids), positions = model.num_positions();
  prompt.most = tokens + arguments.max_new_tokens;
  if (positions == 0 || prompt.most <= positions) return prompt;
  DISTCA_THROW_IF(tokens >= positions, ErrorKind::kUsage,
                  "the prompt has {} tokens, and the model has {} positions "
                  "(max_position_embeddings): give a shorter one",
                  tokens, positions);
  prompt.most = positions;
  prompt.is_cut = true;
  return prompt;
}

/// Gives the decoder the prompt; gives x of its last token, [1, C]. The logits of all its tokens,
/// [T, V] fp32, go into the file, if there is one.
at::Tensor feed_prompt(const Llama& model, Decoder& decoder, const std::vector<int64_t>& prompt,
                       std::optional<AtomicFile>& file) {
  const at::Tensor ids = at::tensor(prompt, at::kLong);
  at::Tensor x;
  while (decoder.tokens() < ids.size(0)) {
    const int64_t count = std::min(kPartTokens, ids.size(0) - decoder.tokens());
    x = decoder.feed(ids.narrow(0, decoder.tokens(), count));
    if (!file) continue;
    const at::Tensor rows = model.logits(x).contiguous();
    file->write(std::span(static_cast<const std::byte*>(rows.const_data_ptr()), rows.nbytes()));
  }
  return x.slice(0, -1);
}

/// False where nobody gets it: the end of the program says why.
bool print_now(const std::string& text) {
  fmt::print("{}", text);
  return std::fflush(stdout) == 0;
}

void generate(const GenerateArguments& arguments) {
  check_arguments(arguments);
  const fs::path& folder = arguments.folder;
  std::vector<std::string> notes;
  const LlamaConfig config = read_hugging_face_config(folder, &notes);
  say_notes(notes);
  const SpecialTokens special = special_tokens(folder);
  const std::unique_ptr<TextTokenizer> tokenizer =
      arguments.ids ? id_words() : tokenizer_of(folder, special.before_prompt);
  const Prompt prompt = read_prompt(arguments, config, *tokenizer);
  const HuggingFaceWeights weights(folder, config);
  std::optional<AtomicFile> file;
  if (!arguments.logits.empty()) {
    const std::vector<int64_t> shape = {std::ssize(prompt.ids), config.vocab_size};
    file.emplace(arguments.logits)
        .write(safetensors_header({{.name = "logits", .shape = shape}}, {}));
  }

  const c10::AutoGradMode no_grad(false);
  const Llama model(config, /*seed=*/0, /*cuda_device=*/-1);
  load_weights(weights, model);
  Decoder decoder(model, prompt.most, at::get_num_threads());
  at::Tensor x = feed_prompt(model, decoder, prompt.ids, file);
  if (file) file->commit();
  Sampler sampler(arguments.sampling, static_cast<uint64_t>(arguments.seed));
  // Printed once a token follows, because what is wrong with the weights is known then.
  std::string waiting =
      arguments.ids ? fmt::format("{}", fmt::join(prompt.ids, " ")) : *arguments.text;
  bool ended = false;
  for (int64_t tokens = std::ssize(prompt.ids); tokens < prompt.most && !ended; ++tokens) {
    const at::Tensor logits = model.logits(x).contiguous();
    const int64_t id =
        sampler.next({logits.const_data_ptr<float>(), static_cast<size_t>(logits.numel())});
    if (!print_now(std::exchange(waiting, {}) + tokenizer->add(id))) return;
    ended = special.ends.contains(id);
    if (!ended) x = decoder.feed(at::tensor({id}, at::kLong));
  }
  print_now(waiting + tokenizer->rest() + "\n");
  if (prompt.is_cut && !ended) {
    fmt::print(stderr, "distca: ended at position {}, the model's last (max_position_embeddings)\n",
               prompt.most);
  }
}

}  // namespace

void add_generate(CLI::App& app) {
  auto arguments = std::make_shared<GenerateArguments>();
  CLI::App* verb = app.add_subcommand("generate", "What a trained model says after a text");
  verb->add_option("folder", arguments->folder, "A run, an export, or a model of Hugging Face")
      ->required();
  verb->add_option("text", arguments->text, "What the model goes on with");
  verb->add_option("--ids", arguments->ids,
                   "Token ids in place of a text, such as \"1 2 3\"; then ids are printed, too");
  number(*verb, "--max-new-tokens", arguments->max_new_tokens, 0, kMostTokens,
         "It ends there, or after the model's end-of-text token");
  number(*verb, "--temperature", arguments->sampling.temperature, 0, 1e6,
         "Below 1 likely tokens come more often; 0: the likeliest always");
  number(*verb, "--top-k", arguments->sampling.top_k, 0, kMostTokens,
         "Draw among the so many likeliest tokens only; 0: among all");
  number(*verb, "--top-p", arguments->sampling.top_p, 0, 1,
         "Draw among the fewest tokens only that are this likely together")
      ->check(CLI::PositiveNumber);
  number(*verb, "--seed", arguments->seed, 0, INT64_MAX, "The same seed gives the same text");
  verb->add_option("--logits", arguments->logits,
                   "Write the logits of all tokens of the prompt, [tokens, vocab_size] in fp32, "
                   "into this safetensors file, which is replaced");
  verb->footer("Example:  distca generate runs/demo \"def \"");
  verb->callback([arguments] { generate(*arguments); });
}

}  // namespace distca::cli
