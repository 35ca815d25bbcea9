#include "distca/batch/tokenizer_files.h"

#include <system_error>
#include <utility>

#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/base/json_field.h"

namespace distca {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTokenizerJson = "tokenizer.json";

fs::path beside(const fs::path& prefix, const char* extension) {
  return data_set_files(prefix)[0].replace_extension(extension);
}

/// A character as UTF-8; those here have one or two bytes.
std::string utf8(int code) {
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
}

/// The tokenizer of one set; no files if it is not known.
FilesByName tokenizer_of(const std::string& prefix, const IndexedDataset& data) {
  if (data.token_type() == TokenType::kUint8) return byte_tokenizer();
  FilesByName files;
  std::error_code ignored;  // no folder: not known
  for (const fs::directory_entry& entry : fs::directory_iterator(tokenizer_folder(prefix), ignored))
    files[entry.path().filename()] = read_file(entry.path());
  return files;
}

/// Of the last token of each document; null where there is none.
Json eod_token_id(const std::string& prefix) {
  const fs::path file = tokenizer_record_file(prefix);
  std::error_code ignored;  // not there: not known
  if (!fs::exists(file, ignored)) return nullptr;
  const Json json = parse_json(read_file(file), file.string(), ErrorKind::kData);
  const JsonField record(json, file.native(), ErrorKind::kData);
  if (record.has("eod_token_id") && json.at("eod_token_id").is_null()) return nullptr;
  return record["eod_token_id"].integer(0);
}

}  // namespace

fs::path tokenizer_record_file(const fs::path& prefix) { return beside(prefix, ".json"); }
fs::path tokenizer_folder(const fs::path& prefix) { return beside(prefix, ".tokenizer"); }

void save_tokenizer(const fs::path& prefix, const TokenizerRecord& record,
                    const std::map<std::string, fs::path>& files) {
  for (const auto& [name, path] : files)
    write_file_atomically(tokenizer_folder(prefix) / name, read_file(path));
  Json json{{"documents", record.documents},
            {"tokens", record.tokens},
            {"vocab_size", record.vocab_size},
            {"tokenizer_sha256", record.sha256},
            {"eod_token", nullptr},
            {"eod_token_id", nullptr}};
  if (record.appends_eod) {
    json["eod_token"] = record.eod_token;
    json["eod_token_id"] = record.eod_token_id;
  }
  write_file_atomically(tokenizer_record_file(prefix), canonical_json(json));
}

void remove_tokenizer(const fs::path& prefix) {
  std::error_code ignored;  // what is not there
  fs::remove(tokenizer_record_file(prefix), ignored);
  fs::remove_all(tokenizer_folder(prefix), ignored);
}

FilesByName byte_tokenizer() {
  // As GPT-2's tokenizer writes bytes: those that print as themselves, the others from 256 on.
  Json vocabulary = Json::object();
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool prints = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
    vocabulary[utf8(prints ? byte : next++)] = byte;
  }
  const Json bytes = {{"type", "ByteLevel"},
                      {"add_prefix_space", false},
                      {"trim_offsets", false},
                      {"use_regex", false}};
  const Json model = {{"type", "BPE"},
                      {"dropout", nullptr},
                      {"unk_token", nullptr},
                      {"continuing_subword_prefix", nullptr},
                      {"end_of_word_suffix", nullptr},
                      {"fuse_unk", false},
                      {"byte_fallback", false},
                      {"vocab", vocabulary},
                      {"merges", Json::array()}};
  const Json tokenizer = {{"version", "1.0"},
                          {"truncation", nullptr},
                          {"padding", nullptr},
                          {"added_tokens", Json::array()},
                          {"normalizer", nullptr},
                          {"pre_tokenizer", bytes},
                          {"post_processor", nullptr},
                          {"decoder", bytes},
                          {"model", model}};
  const Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                       {"clean_up_tokenization_spaces", false}};
  return {{kTokenizerJson, tokenizer.dump(2) + "\n"},
          {"tokenizer_config.json", config.dump(2) + "\n"}};
}

FilesByName files_beside_weights(const DataBlend& data) {
  FilesByName files;
  Json end;
  std::string whose;  // the set that they are of
  for (int64_t set = 0; set < data.num_sets(); ++set) {
    const std::string& prefix = data.prefix(set);
    FilesByName own = tokenizer_of(prefix, data.set(set));
    if (own.empty()) continue;
    DISTCA_THROW_IF(!files.empty() && own[kTokenizerJson] != files[kTokenizerJson],
                    ErrorKind::kData,
                    "{} and {} were made with different tokenizers: the same id means different "
                    "text in them",
                    whose, prefix);
    if (!files.empty()) continue;
    files = std::move(own);
    end = eod_token_id(prefix);
    whose = prefix;
  }
  const Json generation = {
      {"bos_token_id", nullptr}, {"eos_token_id", end}, {"pad_token_id", nullptr}};
  files["generation_config.json"] = generation.dump(2) + "\n";
  return files;
}

}  // namespace distca
