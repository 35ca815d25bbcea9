#pragma once
// How the documents are split: what is trained on, what validates, as nano-batches and in words.
// Any thread.

#include <string>
#include <vector>

#include "distca/batch/batch_stream.h"
#include "distca/batch/indexed_dataset.h"
#include "distca/train/config.h"

namespace distca {

/// The validation nano-batches, the same ones each time: at most an epoch, so that none counts
/// twice. None where no validation document has a next token.
std::vector<Batch> validation_batches(const Config& config, const IndexedDataset& data,
                                      const DocumentSplit& split);

/// Throws Error(kData) where no document that is trained on has a next token.
void check_training_part(const IndexedDataset& data, const DocumentSplit& split);

/// What is trained on, what validates, and how many documents batch.max_document_tokens splits: a
/// line for people.
std::string split_words(const Config& config, const IndexedDataset& data,
                        const DocumentSplit& split);

}  // namespace distca
