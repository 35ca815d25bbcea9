#include "distca/train/held_out.h"

#include <algorithm>

namespace distca {

std::vector<Batch> validation_batches(const Config& config, const IndexedDataset& data,
                                      const DocumentSplit& split) {
  std::vector<Batch> batches;
  if (split.validation.empty()) return batches;
  int64_t tokens = 0;
  for (int64_t document : split.validation) tokens += data.document_length(document);
  BatchOptions options = config.batch;
  options.nano_batches = 1;
  options.nano_batch_tokens = std::clamp<int64_t>(tokens, 1, options.nano_batch_tokens);
  options.max_document_tokens = std::min(options.max_document_tokens, options.nano_batch_tokens);
  BatchStream stream(data.document_lengths(), split.validation, options);
  const int64_t whole = tokens / options.nano_batch_tokens;
  for (int64_t i = 0; i < std::min(whole, config.train.validation_nano_batches); ++i)
    batches.push_back(stream.next());
  return batches;
}

}  // namespace distca
