#include "distca/config/bad_tokens.h"

#include <optional>
#include <string>

#include "distca/base/text.h"
#include "distca/batch/tokenizer_files.h"
#include "distca/config/config.h"

namespace distca {
namespace {

/// Returns the end of an error message: the ids that the model has, how many the tokenizer has or
/// else the largest id found, and how to get a model or data that fit.
std::string describe(const Config& config, const std::optional<RecordedIds>& recorded,
                     const std::string& prefix, int64_t largest_id) {
  const int64_t size = config.model.vocab_size;
  const bool given = !config.model_from.empty();
  std::string text = given ? fmt::format("the model of {} (model.from)", config.model_from)
                           : fmt::format("model.vocab_size = {}", size);
  text += fmt::format(" has ids 0 to {}", size - 1);
  if (recorded && recorded->vocab_size > size) {
    text += fmt::format(", the tokenizer of {} has {}", prefix, recorded->vocab_size);
    largest_id = recorded->vocab_size - 1;
  } else {
    text += fmt::format("; the largest id found is {}", largest_id);
  }
  text += given ? fmt::format(
                      ": resize_token_embeddings({}) of transformers gives the model more, "
                      "or prepare the data with its own tokenizer",
                      largest_id + 1)
                : fmt::format(": set it to at least {} in a new run", largest_id + 1);
  return text + "; or set data.bad_tokens to skip_target or to an id, also to go on with a run";
}

}  // namespace

Vocabulary vocabulary_of(const Config& config) {
  using BadTokens = Vocabulary::BadTokens;
  const std::string& word = config.data.bad_tokens;
  Vocabulary vocabulary{.size = config.model.vocab_size};
  if (word == "refuse") return vocabulary;
  vocabulary.bad_tokens = BadTokens::kSkipTarget;
  if (word == "skip_target") return vocabulary;
  vocabulary.bad_tokens = BadTokens::kReplace;
  vocabulary.id = to_number<int64_t>(word).value_or(-1);
  DISTCA_THROW_IF(vocabulary.id < 0 || vocabulary.id >= vocabulary.size, ErrorKind::kConfig,
                  "data.bad_tokens = \"{}\": must be refuse, skip_target or an id from 0 to {}",
                  word, vocabulary.size - 1);
  return vocabulary;
}

Error bad_token(const Config& config, const DataBlend& data, int64_t set, const BadToken& token) {
  const std::string start =
      fmt::format("{}: document {} has token id {} at position {}: ", data.set(set).path().string(),
                  token.document, token.id, token.position);
  if (token.id < 0) {
    return Error(ErrorKind::kData,
                 "{}an id is not negative; prepare the data set again, or set data.bad_tokens to "
                 "skip_target or to an id",
                 start);
  }
  const std::string& prefix = data.prefix(set);
  return Error(ErrorKind::kData, "{}{}", start,
               describe(config, recorded_ids(prefix, data.set(set)), prefix, token.largest_id));
}

void check_vocabulary(const Config& config, const DataBlend& data) {
  if (vocabulary_of(config).bad_tokens != Vocabulary::BadTokens::kRefuse) return;
  for (int64_t set = 0; set < data.num_sets(); ++set) {
    const auto recorded = recorded_ids(data.prefix(set), data.set(set));
    if (!recorded) {
      if (const auto token = data.set(set).find_beyond(config.model.vocab_size))
        throw bad_token(config, data, set, *token);
      continue;
    }
    DISTCA_THROW_IF(recorded->largest >= config.model.vocab_size, ErrorKind::kData,
                    "{}: its largest token id is {}: {}", data.set(set).path().string(),
                    recorded->largest,
                    describe(config, recorded, data.prefix(set), recorded->largest));
  }
}

}  // namespace distca
