#pragma once
// Which documents are trained on and which validate, as nano-batches and in words. Any thread may
// call these functions.

#include <string>
#include <vector>

#include "distca/batch/batch_stream.h"
#include "distca/batch/indexed_dataset.h"
#include "distca/train/config.h"

namespace distca {

/// The nano-batches of every validation, one in each Batch. They are at most one epoch, so that no
/// document counts twice. Empty if no validation document has a next token.
std::vector<Batch> validation_batches(const Config& config, const IndexedDataset& data,
                                      const DocumentSplit& split);

/// Throws Error(kData) if no document that is trained on has a next token.
void check_training_part(const IndexedDataset& data, const DocumentSplit& split);

/// One line for people: what is trained on, what validates, and how many documents
/// batch.max_document_tokens splits.
std::string split_words(const Config& config, const IndexedDataset& data,
                        const DocumentSplit& split);

}  // namespace distca
