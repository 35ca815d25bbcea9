#pragma once
// Tokens whose ids the model does not have: rows beyond its embedding, or negative. What becomes of
// them is a function of the data and of data.bad_tokens alone, so it is the same on every number of
// workers. Any thread may call these functions.

#include <cstdint>

#include "distca/base/error.h"
#include "distca/batch/data_blend.h"

namespace distca {

struct Config;

/// The ids that the model has, 0 to size - 1, and what becomes of a token with another one.
struct Vocabulary {
  int64_t size = IndexedDataset::kAnyVocabulary;
  enum class BadTokens : uint8_t {
    kRefuse,
    kSkipTarget,  // it is no target, and `id` is embedded in its place
    kReplace,     // it is `id`, as a target, too
  } bad_tokens = BadTokens::kRefuse;
  int64_t id = 0;
};

/// Returns the vocabulary that the configuration gives. Throws Error(kConfig) if data.bad_tokens is
/// neither one of its words nor an id of the model.
Vocabulary vocabulary_of(const Config& config);

/// The line that refuses a token of set `set`; it names the model, the tokenizer if it is known,
/// and what can be done.
Error bad_token(const Config& config, const DataBlend& data, int64_t set, const BadToken& token);

/// Looks for such tokens before a run: in what `distca data prepare` has recorded, else in the data
/// sets (IndexedDataset::find_beyond). Throws Error(kData), unless data.bad_tokens takes them.
void check_vocabulary(const Config& config, const DataBlend& data);

}  // namespace distca
