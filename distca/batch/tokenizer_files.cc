#include "distca/batch/tokenizer_files.h"

#include <system_error>
#include <utility>

#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/base/json_field.h"
#include "distca/base/sha256.h"

namespace distca {
namespace {

namespace fs = std::filesystem;

constexpr const char* kGenerationJson = "generation_config.json";

fs::path beside(const fs::path& prefix, const char* extension) {
  return data_set_files(prefix)[0].replace_extension(extension);
}

/// A character as UTF-8; those here have one or two bytes.
std::string utf8(int code) {
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
}

/// The contents of PREFIX.json; null where there is none. What it says of another set, which lay
/// under this name before, is discarded.
Json record_of(const std::string& prefix, const IndexedDataset& data) {
  const fs::path file = tokenizer_record_file(prefix);
  std::error_code ignored;  // not there: not known
  if (!fs::exists(file, ignored)) return nullptr;
  Json json = read_json(file);
  const JsonField record(json, file.native(), ErrorKind::kData);
  const auto differs = [&](const char* name, int64_t count) {
    return json.is_object() && json.contains(name) && record[name].integer(0) != count;
  };
  return differs("documents", data.num_documents()) || differs("tokens", data.num_tokens()) ? Json()
                                                                                            : json;
}

/// The tokenizer of one set; no files if it is not known.
FilesByName tokenizer_of(const std::string& prefix, const IndexedDataset& data) {
  if (data.token_type() == TokenType::kUint8) return byte_tokenizer();
  std::error_code ignored;  // no folder, or a record of another set: not known
  const bool has_record = fs::exists(tokenizer_record_file(prefix), ignored);
  if (has_record && record_of(prefix, data).is_null()) return {};
  return contents_of(tokenizer_files(tokenizer_folder(prefix)));
}

/// The id of the end-of-document token, the last of each document; null where there is none.
Json eod_token_id(const std::string& prefix, const IndexedDataset& data) {
  const Json json = record_of(prefix, data);
  if (json.is_null()) return nullptr;
  const fs::path file = tokenizer_record_file(prefix);
  const JsonField record(json, file.native(), ErrorKind::kData);
  if (record.has("eod_token_id") && json.at("eod_token_id").is_null()) return nullptr;
  return record["eod_token_id"].integer(0);
}

/// The SHA-256 of the tokenizer that made a set; "" where it is not known.
std::string recorded_sha256(const std::string& prefix, const IndexedDataset& data) {
  const Json json = record_of(prefix, data);
  if (!json.is_object() || !json.contains("tokenizer_sha256")) return "";
  const fs::path file = tokenizer_record_file(prefix);
  return JsonField(json, file.native(), ErrorKind::kData)["tokenizer_sha256"].text();
}

/// The meaning of each id of a tokenizer.json; null if that cannot be seen. A tokenizer that
/// transformers has saved again has other bytes and the same vocabulary.
Json vocabulary(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.value("model", Json()).is_object() ||
      !json["model"].contains("vocab"))
    return nullptr;
  Json added = Json::object();
  for (const Json& token : json.value("added_tokens", Json::array())) {
    if (!token.is_object() || !token.contains("content")) return nullptr;
    added[token["content"].dump()] = token.value("id", Json());
  }
  return Json::array({json["model"]["vocab"], added});
}

/// The files of the tokenizer in a model's folder, and generation_config.json.
std::map<std::string, fs::path> files_of_model(const fs::path& folder) {
  std::map<std::string, fs::path> files = tokenizer_files(folder);
  const fs::path generation = folder / kGenerationJson;
  std::error_code ignored;
  if (fs::is_regular_file(generation, ignored)) files[kGenerationJson] = generation;
  return files;
}

bool same_vocabulary(const std::string& text, const fs::path& other) {
  std::error_code ignored;  // not there: not known
  if (!fs::exists(other, ignored)) return false;
  const Json known = vocabulary(text);
  return !known.is_null() && known == vocabulary(read_file(other, ErrorKind::kData));
}

}  // namespace

fs::path tokenizer_record_file(const fs::path& prefix) { return beside(prefix, ".json"); }
fs::path tokenizer_folder(const fs::path& prefix) { return beside(prefix, ".tokenizer"); }

std::map<std::string, fs::path> tokenizer_files(const fs::path& folder) {
  std::map<std::string, fs::path> files;
  std::error_code ignored;  // a file that cannot be looked at is taken not to be there
  for (const char* name :
       {kTokenizerJson, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
        "vocab.json", "merges.txt", "tokenizer.model", "chat_template.jinja"}) {
    if (fs::is_regular_file(folder / name, ignored)) files[name] = folder / name;
  }
  return files;
}

FilesByName contents_of(const std::map<std::string, fs::path>& files) {
  FilesByName contents;
  for (const auto& [name, path] : files) contents[name] = read_file(path, ErrorKind::kData);
  return contents;
}

void save_tokenizer(const fs::path& prefix, const TokenizerRecord& record,
                    const FilesByName& files) {
  std::error_code ignored;  // there may be none
  fs::remove(tokenizer_record_file(prefix), ignored);
  // Other files in a folder of this name are not ours, nor are those that a link leads to.
  const fs::path folder = tokenizer_folder(prefix);
  if (!fs::is_symlink(folder, ignored)) {
    for (const auto& [name, path] : tokenizer_files(folder)) fs::remove(path, ignored);
  }
  fs::remove(folder, ignored);
  for (const auto& [name, text] : files)
    write_file_atomically(tokenizer_folder(prefix) / name, text);
  Json json{{"documents", record.documents},
            {"tokens", record.tokens},
            {"vocab_size", record.vocab_size},
            {"largest_id", record.largest_id},
            {"eod_token", nullptr},
            {"eod_token_id", nullptr}};
  if (!record.sha256.empty()) json["tokenizer_sha256"] = record.sha256;
  if (record.eod_token_id >= 0) {
    json["eod_token"] = record.eod_token;
    json["eod_token_id"] = record.eod_token_id;
  }
  write_file_atomically(tokenizer_record_file(prefix), canonical_json(json));
}

std::optional<RecordedIds> recorded_ids(const std::string& prefix, const IndexedDataset& data) {
  const Json json = record_of(prefix, data);
  if (!json.is_object() || !json.contains("largest_id")) return {};
  const fs::path file = tokenizer_record_file(prefix);
  const JsonField record(json, file.native(), ErrorKind::kData);
  return RecordedIds{.largest = record["largest_id"].integer(0),
                     .vocab_size = record["vocab_size"].integer(0)};
}

std::vector<std::string> files_of_other_tokenizer(const fs::path& folder, const FilesByName& own) {
  std::vector<std::string> others;
  const auto tokenizer = own.find(kTokenizerJson);
  for (const auto& [name, path] : files_of_model(folder)) {
    if (name == kTokenizerJson && tokenizer != own.end() && read_file(path) == tokenizer->second)
      return {};
    if (!own.contains(name)) others.push_back(name);
  }
  return others;
}

void set_tokenizer_aside(const fs::path& folder, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    std::error_code code;
    fs::rename(folder / name, folder / (name + kAside), code);
    DISTCA_THROW_IF(code, ErrorKind::kIo, "{}: of the model before, and cannot be renamed: {}",
                    (folder / name).string(), code.message());
  }
}

FilesByName read_tokenizer(const fs::path& folder) { return contents_of(files_of_model(folder)); }

FilesByName byte_tokenizer() {
  // GPT-2's tokenizer writes bytes so: those that print as themselves, the others from 256 on.
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
    end = eod_token_id(prefix, data.set(set));
    whose = prefix;
  }
  const Json generation = {
      {"bos_token_id", nullptr}, {"eos_token_id", end}, {"pad_token_id", nullptr}};
  files[kGenerationJson] = generation.dump(2) + "\n";
  return files;
}

Json with_eos_token_id(Json config, const FilesByName& beside_weights) {
  const auto generation = beside_weights.find(kGenerationJson);
  if (generation == beside_weights.end()) return config;
  const Json said = parse_json(generation->second, kGenerationJson, ErrorKind::kData);
  if (config.value("eos_token_id", Json()).is_null() && said.is_object())
    config["eos_token_id"] = said.value("eos_token_id", Json());
  return config;
}

void check_tokenizer(const DataBlend& data, const fs::path& model_folder) {
  const fs::path file = model_folder / kTokenizerJson;
  std::error_code ignored;  // not there: not known
  if (!fs::exists(file, ignored)) return;
  const std::string text = read_file(file, ErrorKind::kData);
  const std::string hash = sha256_hex(text);
  for (int64_t set = 0; set < data.num_sets(); ++set) {
    const std::string& prefix = data.prefix(set);
    const std::string made_with = recorded_sha256(prefix, data.set(set));
    const bool is_bytes = made_with.empty() && data.set(set).token_type() == TokenType::kUint8;
    DISTCA_THROW_IF(is_bytes && vocabulary(text) != vocabulary(byte_tokenizer().at(kTokenizerJson)),
                    ErrorKind::kData,
                    "{} holds bytes, and {} is another tokenizer: the same id means different text "
                    "in them; prepare the data with --tokenizer {}",
                    prefix, file.string(), model_folder.string());
    if (made_with.empty() || made_with == hash) continue;
    DISTCA_THROW_IF(
        !same_vocabulary(text, tokenizer_folder(prefix) / kTokenizerJson), ErrorKind::kData,
        "{} was made with another tokenizer (SHA-256 {:.12}) than {} ({:.12}): the same "
        "id means different text in them; prepare the data with --tokenizer {}",
        prefix, made_with, file.string(), hash, model_folder.string());
  }
}

}  // namespace distca
