#pragma once
// A stream of batches for training. A batch is a function of the data, the seed and the [batch]
// configuration alone, and never of the workers (docs/data_format.md).
//
//   const IndexedDataset data("data/stdlib");
//   BatchStream stream(data.document_lengths(), {.nano_batch_tokens = 8192,
//                                                .nano_batches = 2,
//                                                .max_document_tokens = 4096});
//   const Batch batch = stream.next();  // batch[i].nano_batch is what a plan is made for
//
// A document longer than max_document_tokens is cut into pieces. The seed shuffles the pieces, in a
// new order for each epoch, and in this order they fill one nano-batch after another. (Documents
// are cut first and shuffled then. Otherwise one file of 757,011 tokens would fill 92 nano-batches
// of 8,192 in a row.) The part of a piece that does not fit into the rest of a nano-batch goes on
// as a new document in the next one. The last token of a piece has the original document's next
// token as its target, so every next-token pair of an epoch is a target exactly once. Every
// nano-batch is full: the last one of an epoch is filled from the next epoch's order.
//
// A stream belongs to one thread. Time: O(pieces) for each epoch, and O(documents of the batch) for
// each batch.

#include <cstdint>
#include <vector>

#include "distca/batch/document.h"

namespace distca {

struct BatchOptions {
  int64_t nano_batch_tokens = 0;    // tokens of every nano-batch, > 0
  int64_t nano_batches = 1;         // in a batch (an optimizer step), > 0
  int64_t max_document_tokens = 0;  // longer ones are cut; in 1 .. nano_batch_tokens
  uint64_t seed = 0;                // of the shuffles
};

/// Says where the tokens of one document of a nano-batch come from.
struct DocumentSource {
  int64_t document = 0;  // index in the data set
  int64_t offset = 0;    // of its first token, in the document of the data set
  /// The next-token pairs of the document. There are as many as tokens, or one less where the
  /// original document ends.
  int64_t num_targets = 0;
  bool operator==(const DocumentSource&) const = default;
};

struct NanoBatchSource {
  NanoBatch nano_batch;
  std::vector<DocumentSource> sources;  // [documents of the nano-batch]

  int64_t num_targets() const;
  bool operator==(const NanoBatchSource&) const = default;
};

using Batch = std::vector<NanoBatchSource>;  // [nano_batches]

class BatchStream {
 public:
  /// Streams all documents of a data set, which are given by their lengths in tokens. Documents of
  /// length 0 are skipped. Throws Error(kConfig) for options out of range and Error(kData) if there
  /// is no token at all.
  BatchStream(std::vector<int64_t> document_lengths, BatchOptions options);
  /// Streams only the documents listed, for example one side of a split. `documents` holds indices
  /// into document_lengths, each at most once.
  BatchStream(std::vector<int64_t> document_lengths, std::vector<int64_t> documents,
              BatchOptions options);

  Batch next();
  /// Makes the next call of next() yield batch `index`, counted from 0. The index is all the state
  /// that a checkpoint of a stream needs.
  void seek(int64_t index);

  int64_t batch_index() const { return batch_index_; }  // of the batch that next() yields
  /// The epoch of the next batch's first token, from 0.
  int64_t epoch() const { return epoch_; }
  /// The tokens of one epoch.
  int64_t epoch_tokens() const { return epoch_tokens_; }
  /// The next-token pairs of one epoch.
  int64_t epoch_targets() const;

 private:
  NanoBatchSource next_nano_batch();
  void shuffle_epoch(int64_t epoch);
  void finish_piece();
  int64_t piece_length(int64_t piece) const;

  struct Piece {
    int64_t document;
    int64_t offset;  // a multiple of max_document_tokens
  };

  std::vector<int64_t> lengths_;    // [documents of the data set] tokens
  std::vector<int64_t> documents_;  // those in use: not empty, ascending
  BatchOptions options_;
  std::vector<Piece> pieces_;  // of documents_, in their order
  int64_t epoch_tokens_ = 0;

  int64_t batch_index_ = 0;
  int64_t epoch_ = 0;
  std::vector<int64_t> order_;  // indices of pieces_, shuffled for epoch_
  int64_t position_ = 0;        // in order_
  int64_t offset_ = 0;          // the next token of piece order_[position_]
};

struct DocumentSplit {
  std::vector<int64_t> train;       // ascending
  std::vector<int64_t> validation;  // ascending
};

/// Sets round(num_documents x validation_fraction) whole documents aside for validation. `seed`
/// chooses them. With a fraction above 0, at least one is set aside if there are two or more, and
/// never all of them. Throws Error(kConfig) unless 0 <= validation_fraction < 1.
DocumentSplit split_documents(int64_t num_documents, double validation_fraction, uint64_t seed);

}  // namespace distca
