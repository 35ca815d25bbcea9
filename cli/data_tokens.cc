#include "cli/data_tokens.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <span>

#include "cli/options.h"
#include "cli/python_verb.h"
#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/base/json_field.h"
#include "distca/base/text.h"
#include "distca/batch/indexed_dataset.h"
#include "distca/batch/tokenizer_files.h"

namespace distca::cli {
namespace {

constexpr std::string_view kVerb = "distca-tokenize";
constexpr int64_t kUint16Ids = int64_t{1} << 16;

/// The tokenizer and its input, as its process describes them.
struct About {
  TokenizerRecord record;
  std::map<std::string, std::filesystem::path> files;
  int64_t bytes = 0;  // size of all files of text
};

About about(PythonVerb& verb) {
  const std::string text = verb.line();
  const Json json = parse_json(text, kVerb, ErrorKind::kIo);
  DISTCA_THROW_IF(json.contains("error"), ErrorKind::kData, "{}",
                  json.at("error").get<std::string>());
  const JsonField field(json, kVerb, ErrorKind::kIo);
  About result{.bytes = field["bytes"].integer(0)};
  result.record.sha256 = field["sha256"].text();
  result.record.vocab_size = field["vocab_size"].integer(0);
  if (!json.at("eod_token_id").is_null()) {
    result.record.eod_token = field["eod_token"].text();
    result.record.eod_token_id = field["eod_token_id"].integer(0);
  }
  const std::filesystem::path path = field["path"].text();
  if (path.filename() == kTokenizerJson) result.files = tokenizer_files(path.parent_path());
  result.files[kTokenizerJson] = path;
  return result;
}

struct Block {
  std::vector<int64_t> lengths;  // [documents] tokens
  std::vector<int32_t> ids;
  int64_t empty = 0;       // texts that were left out
  int64_t no_text = 0;     // files that were left out
  int64_t text_bytes = 0;  // size of the documents, in UTF-8
  int64_t read = 0;        // bytes of all files so far
};

/// Nothing after the last one.
std::optional<Block> next_block(PythonVerb& verb) {
  std::array<int64_t, 6> header{};
  verb.read(std::as_writable_bytes(std::span(header)));
  const auto [documents, tokens, empty, no_text, text_bytes, read] = header;
  if (documents == -1) return {};
  if (documents < 0) {
    std::string words(static_cast<size_t>(tokens), ' ');
    verb.read(std::as_writable_bytes(std::span(words)));
    throw Error(documents == -2 ? ErrorKind::kData : ErrorKind::kIo, "{}", words);
  }
  Block block{.empty = empty, .no_text = no_text, .text_bytes = text_bytes, .read = read};
  block.lengths.resize(static_cast<size_t>(documents));
  block.ids.resize(static_cast<size_t>(tokens));
  verb.read(std::as_writable_bytes(std::span(block.lengths)));
  verb.read(std::as_writable_bytes(std::span(block.ids)));
  return block;
}

/// Says how many documents and tokens there are after so many seconds, and the time left.
std::string progress_text(const About& made, int64_t read, double seconds) {
  const auto left = static_cast<int64_t>(seconds * static_cast<double>(made.bytes - read) /
                                         static_cast<double>(std::max<int64_t>(read, 1)));
  // How much a pipe holds is not known.
  return fmt::format("{} documents, {} tokens{}", with_thousands(made.record.documents),
                     with_thousands(made.record.tokens),
                     made.bytes > 0 ? fmt::format(", {}:{:02} left", left / 60, left % 60) : "");
}

/// The totals of a data set's text.
struct Counts {
  int64_t empty = 0, no_text = 0, text_bytes = 0;
};

void print_counts(const TokenizeOptions& options, const TokenizerRecord& record,
                  const Counts& counts) {
  fmt::print("{} of {}, {:.2f} bytes of text a token; skipped {} without text{}; ",
             counted(record.documents, options.by_line ? "document" : "file"),
             options.by_line ? "JSON lines" : "text",
             static_cast<double>(counts.text_bytes) / static_cast<double>(record.tokens),
             with_thousands(counts.empty),
             options.by_line
                 ? ""
                 : fmt::format(" and {} binary or not UTF-8", with_thousands(counts.no_text)));
  if (record.eod_token_id >= 0) {
    fmt::print("each ends with {} (id {})\n", record.eod_token, record.eod_token_id);
  } else {
    fmt::print("no end-of-document token\n");
  }
}

}  // namespace

void prepare_tokens(const TokenizeOptions& options) {
  PythonVerb verb(std::string(kVerb), {options.tokenizer, options.by_line ? "lines" : "files",
                                       options.key, std::to_string(options.workers),
                                       options.append_eod ? "append-eod" : "no-append-eod"});
  // Not as words of the command, which may have no more than some megabytes.
  for (const std::filesystem::path& file : options.files) verb.write(file.native() + '\0');
  verb.end_input();
  About made = about(verb);
  TokenizerRecord& record = made.record;
  IndexedDatasetWriter writer(
      options.out, record.vocab_size <= kUint16Ids ? TokenType::kUint16 : TokenType::kInt32);
  Counts counts;
  {
    ProgressLine progress(/*every_s=*/30);
    const Stopwatch watch;
    while (const std::optional<Block> block = next_block(verb)) {
      std::span<const int32_t> ids(block->ids);
      for (const int64_t length : block->lengths) {
        writer.add_document(ids.first(static_cast<size_t>(length)));
        ids = ids.subspan(static_cast<size_t>(length));
      }
      record.documents += static_cast<int64_t>(block->lengths.size());
      record.tokens += static_cast<int64_t>(block->ids.size());
      counts.empty += block->empty;
      counts.no_text += block->no_text;
      counts.text_bytes += block->text_bytes;
      progress.show(progress_text(made, block->read, watch.seconds()));
    }
  }
  DISTCA_THROW_IF(record.documents == 0, ErrorKind::kData, "{}: holds no text{}",
                  options.files[0].string(),
                  options.files.size() > 1 ? ", nor do the other files" : "");
  const FilesByName files = contents_of(made.files);  // perhaps those that are replaced
  writer.finish();
  record.largest_id = writer.largest_id();
  save_tokenizer(options.out, record, files);
  print_counts(options, record, counts);
}

}  // namespace distca::cli
