#pragma once
// The documents that are held out, as nano-batches. Any thread.

#include <vector>

#include "distca/batch/batch_stream.h"
#include "distca/batch/indexed_dataset.h"
#include "distca/train/config.h"

namespace distca {

/// The held-out nano-batches, the same ones each time: at most an epoch, so that none counts twice.
std::vector<Batch> validation_batches(const Config& config, const IndexedDataset& data,
                                      const DocumentSplit& split);

}  // namespace distca
