#include "distca/forecast/data_split.h"

#include <algorithm>
#include <span>
#include <utility>

#include "distca/base/error.h"
#include "distca/base/text.h"

namespace distca {
namespace {

struct Part {
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t targets = 0;  // next-token pairs
  int64_t split = 0;    // documents longer than batch.max_document_tokens

  std::string describe() const {
    return counted(documents, "document") + ", " + counted(tokens, "token");
  }
};

Part part_of(const DataBlend& data, std::span<const int64_t> documents,
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

/// [batches / 2, rounded up] joined neighbours: exchanges of one run under computing of the other.
std::vector<Batch> in_pairs(const std::vector<Batch>& batches) {
  std::vector<Batch> pairs;
  for (size_t i = 0; i < batches.size(); ++i) {
    if (i % 2 == 0) pairs.emplace_back();
    pairs.back().insert(pairs.back().end(), batches[i].begin(), batches[i].end());
  }
  return pairs;
}

/// Returns the part of ascending `documents` whose numbers lie in the range.
std::span<const int64_t> documents_within(const std::vector<int64_t>& documents, Range range) {
  return {std::ranges::lower_bound(documents, range.begin),
          std::ranges::lower_bound(documents, range.end)};
}

}  // namespace

DocumentSplit split_data(const Config& config, const DataBlend& data) {
  return data.split(config.data.validation_fraction, config.batch.seed);
}

BatchStream training_stream(const Config& config, const DataBlend& data,
                            const DocumentSplit& split) {
  return {data.document_lengths(), split.train, config.batch, data.sets()};
}

std::vector<Batch> validation_batches(const Config& config, const DataBlend& data,
                                      const DocumentSplit& split) {
  std::vector<Batch> batches;
  const Part part = part_of(data, split.validation, config.batch.max_document_tokens);
  if (part.targets == 0) return batches;
  BatchOptions options = config.batch;
  options.nano_batches = 1;
  options.nano_batch_tokens = std::min(part.tokens, options.nano_batch_tokens);
  // The first epochs end with the set that is shortest compared with its share. If that is before
  // the end of the first nano-batch, a smaller nano-batch is taken.
  for (; batches.empty() && options.nano_batch_tokens > 0; options.nano_batch_tokens /= 2) {
    options.max_document_tokens = std::min(options.max_document_tokens, options.nano_batch_tokens);
    BatchStream stream(data.document_lengths(), split.validation, options, data.sets());
    for (Batch batch = stream.next(); stream.is_within_first_epochs(); batch = stream.next()) {
      if (static_cast<int64_t>(batches.size()) == config.train.validation_nano_batches) break;
      batches.push_back(std::move(batch));
    }
  }
  // A mean over no target would be no figure.
  if (std::ranges::all_of(batches, [](const Batch& batch) { return batch[0].num_targets() == 0; }))
    batches.clear();
  return config.pairs_nano_batches() ? in_pairs(batches) : batches;
}

std::vector<Batch> evaluation_batches(const Config& config, const DataBlend& data) {
  std::vector<Batch> batches;
  std::vector<DocumentSource> sources;
  std::vector<int64_t> lengths;
  int64_t tokens = 0;
  const auto end_nano_batch = [&] {
    if (lengths.empty()) return;
    batches.push_back({{.nano_batch = NanoBatch::from_lengths(lengths), .sources = sources}});
    sources.clear();
    lengths.clear();
    tokens = 0;
  };
  bool has_target = false;
  for (int64_t document = 0; document < data.num_documents(); ++document) {
    const int64_t all = data.document_length(document);
    has_target |= all > 1;
    for (int64_t offset = 0; offset < all; offset += config.batch.max_document_tokens) {
      const int64_t length = std::min(config.batch.max_document_tokens, all - offset);
      if (tokens + length > config.batch.nano_batch_tokens) end_nano_batch();
      sources.push_back({document, offset, offset + length == all ? length - 1 : length});
      lengths.push_back(length);
      tokens += length;
    }
  }
  end_nano_batch();
  DISTCA_THROW_IF(!has_target, ErrorKind::kData,
                  "{} has no next token: not one of its documents has two tokens",
                  config.data.prefix);
  return config.pairs_nano_batches() ? in_pairs(batches) : batches;
}

void check_training_part(const DataBlend& data, const DocumentSplit& split) {
  for (int64_t set = 0; set < data.num_sets(); ++set) {
    const Part train = part_of(data, documents_within(split.train, data.documents_of(set)), 1);
    DISTCA_THROW_IF(
        train.targets == 0, ErrorKind::kData,
        "{} has no next token to learn: not one of the {} that are trained on has two tokens ({} "
        "for validation)",
        data.num_sets() == 1 ? "the data set" : data.prefix(set),
        train.documents == 1 ? "document" : with_thousands(train.documents) + " documents",
        documents_within(split.validation, data.documents_of(set)).size());
  }
}

std::string describe_split(const Config& config, const DataBlend& data,
                           const DocumentSplit& split) {
  const int64_t most = config.batch.max_document_tokens;
  const Part train = part_of(data, split.train, most);
  const Part validation = part_of(data, split.validation, most);
  std::string text = "training on " + train.describe();
  if (const int64_t step = config.batch.nano_batches * config.batch.nano_batch_tokens;
      train.tokens < step) {
    text +=
        fmt::format(" (a step takes {}: it has each document {:.1f} times)", with_thousands(step),
                    static_cast<double>(step) / static_cast<double>(train.tokens));
  }
  if (train.split > 0) {
    text += fmt::format(" ({} longer than {} tokens, split into pieces)",
                        with_thousands(train.split), with_thousands(most));
  }
  if (validation.documents == 0) {
    return text + (config.data.validation_fraction > 0
                       ? "; one document: none for validation, no validation loss"
                       : "; no validation");
  }
  text += "; validation: " + validation.describe();
  if (validation_batches(config, data, split).empty())
    text += ", no next token: no validation loss";
  return text;
}

}  // namespace distca
