// distca evaluate: the loss of a run's, a checkpoint's or a Hugging Face model's weights over a
// data set, also by the position of a token in its document.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/options.h"
#include "cli/start_ranks.h"
#include "cli/verbs.h"
#include "distca/base/console.h"
#include "distca/base/env.h"
#include "distca/base/error.h"
#include "distca/base/json.h"
#include "distca/base/text.h"
#include "distca/batch/data_blend.h"
#include "distca/batch/tokenizer_files.h"
#include "distca/checkpoint/folder.h"
#include "distca/checkpoint/index.h"
#include "distca/forecast/data_split.h"
#include "distca/model/hugging_face.h"
#include "distca/report/run_folder.h"
#include "distca/train/check_run.h"
#include "distca/train/evaluate.h"
#include "distca/train/resume.h"

namespace distca::cli {
namespace {

namespace fs = std::filesystem;

struct EvaluateArguments {
  fs::path source;
  std::string data;
  std::vector<std::string> overrides;
  int workers = 1;
  bool json = false;
};

/// Where the weights are.
struct Source {
  fs::path checkpoint;            // empty if they are in the folder itself
  std::vector<std::string> keys;  // KEY=VALUE, which say what the model is
  std::string words;              // for people
};

Source find_source(const fs::path& folder) {
  const NewestWeights found = newest_weights(folder);
  const fs::path& holds = found.checkpoint.empty() ? folder : found.checkpoint;
  Source source{.checkpoint = found.checkpoint,
                .keys = {"model.from=" + holds.string()},
                .words = found.steps ? describe_weights(holds, *found.steps) : holds.string()};
  if (source.checkpoint.empty()) return source;
  const std::map<std::string, std::string> config = read_checkpoint_index(holds).config;
  if (const auto dtype = config.find("model.dtype"); dtype != config.end()) {
    std::string word = dtype->second;
    std::erase(word, '\'');  // the value is TOML
    source.keys.push_back("model.dtype=" + word);
  }
  return source;
}

/// Refuses keys that would take the place of the arguments.
void check_overrides(const EvaluateArguments& arguments) {
  for (const std::string& word : arguments.overrides) {
    for (const char* key : {"model.from", "data.prefix"}) {
      DISTCA_THROW_IF(
          word.starts_with(fmt::format("{}=", key)), ErrorKind::kUsage,
          "evaluate: leave out {}: the weights are those of {}, the data those of --data", key,
          arguments.source.string());
    }
  }
}

/// Refuses ids that mean other text to the model. The folder of a run that has not ended has no
/// tokenizer yet, or that of the run which it replaces.
void check_data(const EvaluateArguments& arguments, const Source& source) {
  const DataBlend data(arguments.data);
  DISTCA_THROW_IF(
      data.num_sets() > 1, ErrorKind::kUsage,
      "--data {}: documents count once each, so the weights of a blend would be ignored: "
      "evaluate the sets one by one",
      arguments.data);
  if (source.checkpoint.empty()) return check_tokenizer(data, arguments.source);
  const fs::path checkpoint = fs::canonical(source.checkpoint);
  const fs::path run = checkpoint.parent_path().parent_path();
  if (is_checkpoint_of(run, checkpoint) && !holds_model_of_other_run(run))
    check_tokenizer(data, run);
}

/// The configuration of the evaluation. Documents stay whole up to the length that the model is
/// made for, unless the user says something else.
Config configuration(const EvaluateArguments& arguments, const Source& source) {
  // Two nano-batches at a time: exchanges of one run under computing of the other.
  std::vector<std::string> words = {"data.prefix=" + arguments.data, "batch.nano_batches=2"};
  words.insert(words.end(), source.keys.begin(), source.keys.end());
  words.insert(words.end(), arguments.overrides.begin(), arguments.overrides.end());
  const auto is_given = [&](const std::string& key) {
    return std::ranges::any_of(arguments.overrides,
                               [&](const auto& word) { return word.starts_with(key + "="); });
  };
  Config config = load_config("", words);
  if (is_given("batch.max_document_tokens")) return config;
  int64_t longest = 0;  // also what a data set without documents has
  const DataBlend data(config.data.prefix);
  for (const int64_t length : data.document_lengths()) longest = std::max(longest, length);
  if (const int64_t positions = config.model.num_positions(); positions > 0)
    longest = std::min(longest, positions);
  BatchOptions& batch = config.batch;
  if (!is_given("batch.nano_batch_tokens"))
    batch.nano_batch_tokens = std::max(batch.nano_batch_tokens, longest);
  batch.max_document_tokens = std::clamp<int64_t>(longest, 1, batch.nano_batch_tokens);
  return config;
}

/// A document that is cut has less context than it could have: that is said.
std::string describe_data(const Config& config) {
  const DataBlend data(config.data.prefix);
  const int64_t most = config.batch.max_document_tokens;
  const auto cut =
      std::ranges::count_if(data.document_lengths(), [&](int64_t length) { return length > most; });
  return fmt::format("{} documents, {} tokens{}", with_thousands(data.num_documents()),
                     with_thousands(data.num_tokens()),
                     cut == 0 ? ""
                              : fmt::format(" ({} longer than {} tokens, split into pieces)",
                                            with_thousands(cut), with_thousands(most)));
}

Json to_json(const Config& config, const Source& source, int workers, PositionLosses& losses) {
  const DataBlend data(config.data.prefix);
  const double loss = losses.mean().value();
  Json bands = Json::array();
  int64_t targets = 0;
  for (const PositionBand& band : losses.bands()) {
    targets += band.targets;
    bands.push_back({{"begin", band.begin},
                     {"end", band.end},
                     {"loss", band.loss()},
                     {"targets", band.targets}});
  }
  return {{"weights", source.words},
          {"data", config.data.prefix},
          {"documents", data.num_documents()},
          {"tokens", data.num_tokens()},
          {"max_document_tokens", config.batch.max_document_tokens},
          {"dtype", long_name(config.model.dtype)},
          {"workers", workers},
          {"loss", loss},
          {"perplexity", std::exp(loss)},
          {"targets", targets},
          {"by_position", std::move(bands)}};
}

void print_for_people(const Config& config, const Json& json) {
  fmt::print("{}\n  data        {}: {}\n", json.at("weights").get<std::string>(),
             config.data.prefix, describe_data(config));
  fmt::print("  loss        {:.6f} nats a target, perplexity {:.6g}, {} targets\n",
             json.at("loss").get<double>(), json.at("perplexity").get<double>(),
             with_thousands(json.at("targets").get<int64_t>()));
  if (json.at("by_position").size() < 2) return;
  Table table({"position in the document", "loss", "targets"});
  for (const Json& band : json.at("by_position")) {
    table.add_row({fmt::format("{} to {}", with_thousands(band.at("begin").get<int64_t>()),
                               with_thousands(band.at("end").get<int64_t>() - 1)),
                   fmt::format("{:.6f}", band.at("loss").get<double>()),
                   with_thousands(band.at("targets").get<int64_t>())});
  }
  fmt::print("{}", table.to_string());
}

/// Shows on a terminal how far the evaluation is.
void show(double share) {
  static PacedProgress progress;
  if (!standard_error().is_terminal()) return;
  progress(fmt::format("evaluating: {:.0f} %", std::floor(100 * share)));
}

std::vector<std::string> rank_command(const EvaluateArguments& arguments) {
  std::vector<std::string> command = {fs::read_symlink("/proc/self/exe"), "evaluate",
                                      arguments.source, "--data", arguments.data};
  if (arguments.json) command.emplace_back("--json");
  command.insert(command.end(), arguments.overrides.begin(), arguments.overrides.end());
  return command;
}

int run_evaluate(const EvaluateArguments& arguments) {
  check_overrides(arguments);
  const Source source = find_source(arguments.source);
  const Config config = configuration(arguments, source);
  check_data(arguments, source);
  DISTCA_THROW_IF(measures_speeds(config), ErrorKind::kConfig,
                  "evaluate: times of training steps would enter the plans; leave out {}",
                  config.servers.reweight ? "servers.reweight" : "plan.tolerance = auto");
  const std::optional<Rendezvous> rendezvous = find_rendezvous(env_string);
  const int workers = workers_of(config, arguments.workers, rendezvous);
  const bool is_first = !rendezvous || rendezvous->rank == 0;
  prepare_device(config);
  const bool own_launcher = !this_launch().run_id.empty();
  if (is_first && !own_launcher) say_notes(config.notes);
  check_means(config);
  check_launch(config, rendezvous, arguments.workers);
  if (source.checkpoint.empty()) HuggingFaceWeights(config.model_from, config.model);
  evaluation_batches(config, DataBlend(config.data.prefix));
  set_up_process(config);
  const auto work = [&](Communicator& comm) {
    PositionLosses losses = evaluate_stored(config, source.checkpoint, comm, show);
    if (comm.rank() > 0) return;
    const Json json = to_json(config, source, workers, losses);
    if (arguments.json) {
      fmt::print("{}", canonical_json(json));
    } else {
      print_for_people(config, json);
    }
  };
  return start_ranks({.config = config,
                      .workers = workers,
                      .rendezvous = rendezvous,
                      .begin = [&]() -> RankWork { return work; },
                      .command = rank_command(arguments),
                      .names_ranks = !own_launcher})
      .value_or(0);
}

}  // namespace

void add_evaluate(CLI::App& app, int* exit_code) {
  auto arguments = std::make_shared<EvaluateArguments>();
  CLI::App* verb = app.add_subcommand(
      "evaluate", "The loss of a model on all documents of a data set, also by position");
  verb->add_option("source", arguments->source,
                   "A run, a checkpoint, an export, or a model of Hugging Face")
      ->required();
  verb->add_option("--data", arguments->data, "A prepared data set, as data.prefix")
      ->type_name("PREFIX")
      ->required();
  verb->add_option("overrides", arguments->overrides,
                   "As of distca train, such as model.dtype=bfloat16, or the stages of a pipeline; "
                   "batch.max_document_tokens splits longer documents into pieces")
      ->type_name("KEY=VALUE");
  verb->add_option("--workers", arguments->workers,
                   "Local workers to start, as of distca train; leave it out under torchrun, Slurm "
                   "or Open MPI")
      ->check(in_range(1, kMostRanks));
  verb->add_flag("--json", arguments->json, "Print the result as one JSON object");
  verb->footer("Example:  distca evaluate runs/demo --data data/stdlib --workers 2");
  verb->callback([=] { *exit_code = run_evaluate(*arguments); });
}

}  // namespace distca::cli
