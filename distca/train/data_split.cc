#include "distca/train/data_split.h"

#include <algorithm>

#include "distca/base/error.h"
#include "distca/base/text.h"

namespace distca {
namespace {

struct Part {
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t targets = 0;  // next-token pairs
  int64_t split = 0;    // documents longer than batch.max_document_tokens

  std::string words() const {
    return fmt::format("{} document{}, {} token{}", with_thousands(documents),
                       documents == 1 ? "" : "s", with_thousands(tokens), tokens == 1 ? "" : "s");
  }
};

Part part_of(const IndexedDataset& data, const std::vector<int64_t>& documents,
             int64_t max_document_tokens) {
  Part part;
  for (const int64_t document : documents) {
    const int64_t length = data.document_length(document);
    ++part.documents;
    part.tokens += length;
    part.targets += std::max<int64_t>(length - 1, 0);
    part.split += length > max_document_tokens ? 1 : 0;
  }
  return part;
}

}  // namespace

std::vector<Batch> validation_batches(const Config& config, const IndexedDataset& data,
                                      const DocumentSplit& split) {
  std::vector<Batch> batches;
  const Part part = part_of(data, split.validation, config.batch.max_document_tokens);
  if (part.targets == 0) return batches;
  BatchOptions options = config.batch;
  options.nano_batches = 1;
  options.nano_batch_tokens = std::min(part.tokens, options.nano_batch_tokens);
  options.max_document_tokens = std::min(options.max_document_tokens, options.nano_batch_tokens);
  BatchStream stream(data.document_lengths(), split.validation, options);
  const int64_t whole = part.tokens / options.nano_batch_tokens;
  int64_t targets = 0;
  for (int64_t i = 0; i < std::min(whole, config.train.validation_nano_batches); ++i) {
    batches.push_back(stream.next());
    targets += batches.back()[0].num_targets();
  }
  // A mean over no target would be no figure.
  if (targets == 0) batches.clear();
  return batches;
}

void check_training_part(const IndexedDataset& data, const DocumentSplit& split) {
  const Part part = part_of(data, split.train, 1);
  DISTCA_THROW_IF(
      part.targets == 0, ErrorKind::kData,
      "the data set has no next token to learn: not one of the {} that are trained on has "
      "two tokens ({} for validation)",
      part.documents == 1 ? "document" : with_thousands(part.documents) + " documents",
      split.validation.size());
}

std::string split_words(const Config& config, const IndexedDataset& data,
                        const DocumentSplit& split) {
  const int64_t most = config.batch.max_document_tokens;
  const Part train = part_of(data, split.train, most);
  const Part validation = part_of(data, split.validation, most);
  std::string text = "training on " + train.words();
  if (train.split > 0) {
    text += fmt::format(" ({} longer than {} tokens, split into pieces)",
                        with_thousands(train.split), with_thousands(most));
  }
  if (validation.documents == 0) {
    return text + (config.data.validation_fraction > 0
                       ? "; one document: none for validation, no validation loss"
                       : "; no validation");
  }
  text += "; validation: " + validation.words();
  if (validation_batches(config, data, split).empty())
    text += ", no next token: no validation loss";
  return text;
}

}  // namespace distca
