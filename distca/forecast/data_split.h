#pragma once
// Splits documents into ones that are trained on and ones that validate, and gives both, or all
// that are evaluated, as nano-batches and in words. Any thread may call these functions.

#include <string>
#include <vector>

#include "distca/batch/batch_stream.h"
#include "distca/batch/data_blend.h"
#include "distca/config/config.h"

namespace distca {

DocumentSplit split_data(const Config& config, const DataBlend& data);

/// The batches that are trained on.
BatchStream training_stream(const Config& config, const DataBlend& data,
                            const DocumentSplit& split);

/// The nano-batches of every validation: two in each Batch but for an odd last one where two are
/// under way at the same time in training, else one in each. They are at most one epoch of every
/// set, so that no document counts twice. Sets have their shares here, too; one without a
/// validation document has none. Empty if no validation document has a next token.
std::vector<Batch> validation_batches(const Config& config, const DataBlend& data,
                                      const DocumentSplit& split);

/// The nano-batches of an evaluation of all data: every document once, in the order of the data
/// set, whole unless it is longer than batch.max_document_tokens. A longer one is cut into pieces;
/// as in training, the last token of a piece has the next piece's first one as its target. They are
/// in pairs as those of a validation. Throws Error(kData) if no document has a next token.
std::vector<Batch> evaluation_batches(const Config& config, const DataBlend& data);

/// Throws Error(kData) if no document of a set that is trained on has a next token.
void check_training_part(const DataBlend& data, const DocumentSplit& split);

/// One line for people: what is trained on, what validates, and how many documents
/// batch.max_document_tokens splits.
std::string describe_split(const Config& config, const DataBlend& data, const DocumentSplit& split);

}  // namespace distca
