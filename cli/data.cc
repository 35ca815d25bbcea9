// distca data: text to a data set, and what a data set is like.

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/data_tokens.h"
#include "cli/options.h"
#include "cli/verbs.h"
#include "distca/base/error.h"
#include "distca/base/json.h"
#include "distca/base/text.h"
#include "distca/batch/corpus_statistics.h"
#include "distca/batch/indexed_dataset.h"
#include "distca/batch/text_corpus.h"
#include "distca/batch/tokenizer_files.h"

namespace distca::cli {
namespace {

constexpr std::string_view kBytes = "byte";
constexpr int64_t kByteIds = 256;

struct PrepareOptions {
  std::vector<std::filesystem::path> text, jsonl;
  TextFilter filter;
  TokenizeOptions tokens{.tokenizer = std::string(kBytes)};
  bool overwrite = false;
};

struct ShowDataOptions {
  std::filesystem::path prefix;
  bool json = false;
};

std::string percent(double part, double whole) {
  return fmt::format("{:.1f} %", whole > 0 ? 100 * part / whole : 0);
}

void print_statistics(const LengthStatistics& lengths, int64_t largest_id,
                      const std::optional<Entropies>& entropies) {
  constexpr int kBarWidth = 30;
  int64_t most = 1;
  for (const LengthBucket& bucket : lengths.histogram) most = std::max(most, bucket.documents);
  Table table({"length", "documents", "", "of tokens", "of attention"});
  for (const LengthBucket& bucket : lengths.histogram) {
    table.add_row(
        {with_thousands(bucket.begin) + " ...", with_thousands(bucket.documents),
         bar(static_cast<double>(bucket.documents) / static_cast<double>(most), kBarWidth),
         percent(static_cast<double>(bucket.tokens), static_cast<double>(lengths.tokens)),
         percent(bucket.pairs, lengths.pairs)});
  }
  fmt::print("\n{}\n", table.to_string());
  fmt::print("length         median {}, longest {} tokens\n", with_thousands(lengths.median),
             with_thousands(lengths.longest));
  fmt::print("largest id     {}: model.vocab_size is at least {}\n", largest_id, largest_id + 1);
  fmt::print(
      "attention      {} of L(L+1)/2 in the longest 1 % of documents, {} in the longest 10 %\n",
      percent(lengths.longest_1_percent_share, 1), percent(lengths.longest_10_percent_share, 1));
  if (entropies) {
    fmt::print("entropy        unigram {:.3f}{} nats per token, of these tokens themselves\n",
               entropies->unigram,
               entropies->bigram ? fmt::format(", bigram {:.3f}", *entropies->bigram) : "");
  }
}

void print_json(const IndexedDataset& dataset, const LengthStatistics& lengths,
                const std::optional<Entropies>& entropies) {
  Json histogram = Json::array();
  for (const LengthBucket& bucket : lengths.histogram) {
    histogram.push_back(
        {{"begin", bucket.begin},
         {"documents", bucket.documents},
         {"tokens", bucket.tokens},
         {"attention_share", lengths.pairs > 0 ? bucket.pairs / lengths.pairs : 0}});
  }
  Json json{{"documents", lengths.documents},
            {"sequences", dataset.num_sequences()},
            {"tokens", lengths.tokens},
            {"largest_id", dataset.largest_id()},
            {"token_type", token_type_name(dataset.token_type())},
            {"median_length", lengths.median},
            {"longest_length", lengths.longest},
            {"longest_1_percent_attention_share", lengths.longest_1_percent_share},
            {"longest_10_percent_attention_share", lengths.longest_10_percent_share},
            {"histogram", histogram}};
  if (entropies) {
    json["unigram_nats"] = entropies->unigram;
    if (entropies->bigram) json["bigram_nats"] = *entropies->bigram;
  }
  fmt::print("{}", canonical_json(json));
}

void show(const ShowDataOptions& options) {
  const IndexedDataset dataset(options.prefix);
  const LengthStatistics lengths = length_statistics(dataset.document_lengths());
  const std::optional<Entropies> entropies = token_entropies(dataset);
  if (options.json) {
    print_json(dataset, lengths, entropies);
    return;
  }
  fmt::print("{}: {}, {} ({}, {})\n", options.prefix.string(),
             counted(lengths.documents, "document"), counted(lengths.tokens, "token"),
             token_type_name(dataset.token_type()),
             human_bytes(lengths.tokens * token_bytes(dataset.token_type())));
  print_statistics(lengths, dataset.largest_id(), entropies);
}

void prepare_bytes(const PrepareOptions& options, std::span<const std::filesystem::path> made) {
  const std::filesystem::path& out = options.tokens.out;
  const TextFiles files = find_text_files(options.text, options.filter, made);
  TextCorpus corpus;
  {
    ProgressLine progress(/*every_s=*/std::numeric_limits<double>::infinity());
    const std::string total = with_thousands(std::ssize(files.paths));
    corpus = write_byte_dataset(files.paths, out, [&](int64_t done) {
      progress.show(fmt::format("{} of {} files", with_thousands(done), total));
    });
  }
  save_tokenizer(out,
                 {.vocab_size = kByteIds,
                  .documents = corpus.documents,
                  .tokens = corpus.tokens,
                  .largest_id = corpus.largest_id},
                 {});
  fmt::print("{} of text; skipped {} empty, {} binary, {} links to folders or nothing\n",
             counted(corpus.documents, "file"), with_thousands(corpus.empty),
             with_thousands(corpus.binary), with_thousands(files.links));
}

/// The files of --jsonl, in the order in which they are given, each once; a folder stands for those
/// in it.
TextFiles json_lines_files(const PrepareOptions& options,
                           std::span<const std::filesystem::path> made) {
  constexpr std::array kEndings = {".jsonl",    ".jsonl.gz",  ".jsonl.bz2",
                                   ".jsonl.xz", ".jsonl.zst", ".ndjson"};
  TextFiles found;
  std::vector<std::filesystem::path>& files = found.paths;
  for (const std::filesystem::path& given : options.jsonl) {
    std::error_code absent;
    if (!std::filesystem::is_directory(given, absent)) {
      check_not_made(given, made);
      files.push_back(given);
      continue;
    }
    const TextFiles in_it = find_text_files({given}, options.filter, made);
    found.links += in_it.links;
    const size_t before = files.size();
    for (const std::filesystem::path& file : in_it.paths) {
      const bool is_named = options.filter.glob != TextFilter().glob;
      if (is_named || std::ranges::any_of(kEndings, [&](const char* ending) {
            return file.native().ends_with(ending);
          }))
        files.push_back(file);
    }
    DISTCA_THROW_IF(files.size() == before, ErrorKind::kData,
                    "{}: no file in it is called *.jsonl; --glob names others", given.string());
  }
  keep_each_file_once(files);
  return found;
}

/// Throws Error(kUsage) if PREFIX.json is a file of somebody else's, which --overwrite is not
/// about.
void check_record(const std::filesystem::path& file) {
  std::error_code absent;
  if (!std::filesystem::exists(file, absent)) return;
  const Json json = Json::parse(read_file(file), nullptr, /*allow_exceptions=*/false);
  DISTCA_THROW_IF(!json.is_object() || !json.contains("vocab_size"), ErrorKind::kUsage,
                  "{}: no data set made this file, so it is not replaced: choose another --out",
                  file.string());
}

void prepare(const PrepareOptions& options) {
  TokenizeOptions tokens = options.tokens;
  const bool jsonl = !options.jsonl.empty();
  DISTCA_THROW_IF(
      jsonl == !options.text.empty(), ErrorKind::kUsage,
      "give either --text, files of which each is a document, or --jsonl, files of which "
      "each line is one");
  DISTCA_THROW_IF(jsonl && tokens.tokenizer == kBytes, ErrorKind::kUsage,
                  "--jsonl needs --tokenizer: a tokenizer.json or a folder that has one");
  const auto [bin, idx] = data_set_files(tokens.out);
  const std::array made = {bin, idx, tokenizer_record_file(tokens.out),
                           tokenizer_folder(tokens.out)};
  check_outputs(made, options.overwrite);
  check_record(tokenizer_record_file(tokens.out));
  const MissingFolders missing(std::filesystem::absolute(tokens.out).parent_path());
  tokens.by_line = jsonl;
  if (tokens.tokenizer == kBytes) {
    prepare_bytes(options, made);
  } else {
    const TextFiles files = jsonl ? json_lines_files(options, made)
                                  : find_text_files(options.text, options.filter, made);
    tokens.files = files.paths;
    prepare_tokens(tokens);
    if (files.links > 0) {
      fmt::print("skipped {} to folders or nothing: name the folders themselves\n",
                 counted(files.links, "link"));
    }
  }
  show({.prefix = tokens.out});
}

void add_prepare(CLI::App& data) {
  auto options = std::make_shared<PrepareOptions>();
  CLI::App* verb = data.add_subcommand(
      "prepare", "Write PREFIX.bin and PREFIX.idx from text files or JSON lines");
  TokenizeOptions& tokens = options->tokens;
  verb->add_option("--text", options->text,
                   "Files, or folders searched for files; each file is a document");
  verb->add_option("--jsonl", options->jsonl,
                   "Files of which each line is a document, in JSON, or folders searched for "
                   "*.jsonl; compressed ones are read, too; needs --tokenizer");
  verb->add_option("--json-key", tokens.key, "Where the text is in a line's JSON object")
      ->capture_default_str();
  verb->add_option("--tokenizer", tokens.tokenizer,
                   "byte, for --text: each byte is a token, ids 0 to 255; or a tokenizer.json of "
                   "Hugging Face, or a folder that has one, which needs Python's package "
                   "tokenizers; the environment variable DISTCA_PYTHON names the Python")
      ->capture_default_str();
  verb->add_flag("!--no-append-eod", tokens.append_eod,
                 "Do not end documents with the tokenizer's eos_token");
  number(*verb, "--workers", tokens.workers, 0, 4096,
         "Processes that tokenize; the result does not depend on it; 0: one a core");
  verb->add_option("--glob", options->filter.glob,
                   "Of folders, take only files whose name matches this shell pattern")
      ->capture_default_str();
  verb->add_option("--exclude", options->filter.exclude,
                   "Leave out files and folders of these names (shell patterns)");
  verb->add_option("--out", tokens.out, "PREFIX of the two files; its folder is created")
      ->required();
  verb->add_flag("--overwrite", options->overwrite, "Replace a data set of this PREFIX");
  verb->footer(
      "Example:  distca data prepare --jsonl part-*.jsonl --tokenizer llama --out data/mine");
  verb->callback([options] { prepare(*options); });
}

void add_show_data(CLI::App& data) {
  auto options = std::make_shared<ShowDataOptions>();
  CLI::App* verb =
      data.add_subcommand("show", "Counts, lengths, where the attention work lies, entropies");
  verb->add_option("prefix", options->prefix, "PREFIX of PREFIX.bin and PREFIX.idx")->required();
  verb->add_flag("--json", options->json, "For machines");
  verb->footer("Example:  distca data show data/python --json");
  verb->callback([options] { show(*options); });
}

}  // namespace

void add_data(CLI::App& app) {
  CLI::App* data =
      app.add_subcommand("data", "Data sets: prepare one from text, show what it is like");
  data->require_subcommand(1);
  data->footer(
      "Example:  distca data prepare --text docs --out data/docs && distca data show data/docs");
  add_prepare(*data);
  add_show_data(*data);
}

}  // namespace distca::cli
