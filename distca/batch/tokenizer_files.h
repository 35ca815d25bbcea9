#pragma once
// The tokenizer that made a data set, as it is kept next to the set: PREFIX.json says which it was,
// and PREFIX.tokenizer holds its files (docs/data_format.md). From there they go next to a model's
// weights. Errors: Error(kData) for a record that cannot be read, Error(kIo) for files that cannot
// be read or written. Any thread may call the functions.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "distca/base/json.h"
#include "distca/batch/data_blend.h"

namespace distca {

/// The tokenizer itself; other files belong to it.
inline constexpr const char* kTokenizerJson = "tokenizer.json";

struct TokenizerRecord {
  std::string sha256;      // hash of tokenizer.json
  int64_t vocab_size = 0;  // the largest id and 1
  /// The end-of-document token, which is the last of each document; an id of -1 says that there is
  /// none.
  std::string eod_token;
  int64_t eod_token_id = -1;
  int64_t documents = 0, tokens = 0;  // totals of the data set
  int64_t largest_id = 0;             // the largest id of its tokens
};

/// PREFIX.json and PREFIX.tokenizer; `prefix` may also be the name of either file of a data set.
std::filesystem::path tokenizer_record_file(const std::filesystem::path& prefix);
std::filesystem::path tokenizer_folder(const std::filesystem::path& prefix);

/// Returns the files in a folder that belong to a tokenizer of Hugging Face, as far as they are
/// there: their paths by their names.
std::map<std::string, std::filesystem::path> tokenizer_files(const std::filesystem::path& folder);

/// The contents of files by their names.
using FilesByName = std::map<std::string, std::string>;
FilesByName contents_of(const std::map<std::string, std::filesystem::path>& files);

/// Writes `files` into the folder, in place of what an older set has left there, and the record
/// last. Of bytes there are no files, and no SHA-256.
void save_tokenizer(const std::filesystem::path& prefix, const TokenizerRecord& record,
                    const FilesByName& files);

/// The facts about the ids in a set that its record holds. recorded_ids() returns nothing where
/// there is no record, or where it is of an older version. Here and below, a record of another
/// number of documents or tokens than the set's counts as none.
struct RecordedIds {
  int64_t largest = 0;     // the largest id of all tokens
  int64_t vocab_size = 0;  // the tokenizer's
};
std::optional<RecordedIds> recorded_ids(const std::string& prefix, const IndexedDataset& data);

/// Reads the files that a model's folder has of a tokenizer, with generation_config.json.
FilesByName read_tokenizer(const std::filesystem::path& folder);

/// The names of those of these files that a new model of the folder does not write itself (`own`):
/// they are of the tokenizer of the model before. None if both have the same tokenizer.json.
std::vector<std::string> files_of_other_tokenizer(const std::filesystem::path& folder,
                                                  const FilesByName& own);
/// Has them end in kAside, so that nobody takes them for the new model's. Throws Error(kIo).
void set_tokenizer_aside(const std::filesystem::path& folder,
                         const std::vector<std::string>& names);
inline constexpr const char* kAside = ".older";

/// tokenizer.json and tokenizer_config.json of a tokenizer of Hugging Face whose ids are the bytes
/// of UTF-8. It has no special tokens.
FilesByName byte_tokenizer();

/// The files that belong next to the weights of a model that was trained on `data`, so that Hugging
/// Face reads text and ends it as the data did: the tokenizer's files, if it is known, and
/// generation_config.json. A set of uint8 is of bytes; of a set that distca did not tokenize, the
/// tokenizer is not known. Throws Error(kData) if two sets have different tokenizers.
FilesByName files_beside_weights(const DataBlend& data);

/// `config`, a config.json, with the eos_token_id of generation_config.json among the files, if it
/// names none itself: not every reader looks into both.
Json with_eos_token_id(Json config, const FilesByName& beside_weights);

/// Throws Error(kData) if the folder of a model has a tokenizer.json, and a set of `data` was made
/// with a tokenizer whose ids mean other text, which may be that of bytes. Does nothing where
/// either is not known.
void check_tokenizer(const DataBlend& data, const std::filesystem::path& model_folder);

}  // namespace distca
