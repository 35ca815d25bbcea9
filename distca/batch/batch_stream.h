#pragma once
// Batches: a function of data, seed and the [batch] configuration alone, never of workers
// (docs/data_format.md).
//
// Documents longer than max_document_tokens are cut into pieces; pieces in seeded shuffled order, a
// new order each epoch, fill one nano-batch after another. (Cut first, then shuffled: else one file
// of 757,011 tokens would fill 92 nano-batches of 8,192 in a row.) What does not fit the rest of
// a nano-batch goes on as a new document in the next. The last token of a piece has the original's
// next token as its target, so every next-token pair of an epoch is a target exactly once. Every
// nano-batch is full: the end of an epoch is filled from the next epoch's order.
//
// One thread per stream. Time: O(documents) per epoch, O(its documents) per batch.

#include <cstdint>
#include <vector>

#include "distca/batch/document.h"

namespace distca {

struct BatchOptions {
  int64_t nano_batch_tokens = 0;    // > 0
  int64_t nano_batches = 1;         // per batch, > 0
  int64_t max_document_tokens = 0;  // in 1 .. nano_batch_tokens
  uint64_t seed = 0;
};

/// Where the tokens of one document of a nano-batch come from.
struct DocumentSource {
  int64_t document = 0;  // index in the data set
  int64_t offset = 0;    // its first token there
  int64_t num_targets =
      0;  // next-token pairs: the length, or one less where the original document ends
  bool operator==(const DocumentSource&) const = default;
};

struct NanoBatchSource {
  NanoBatch nano_batch;
  std::vector<DocumentSource> sources;  // [num_documents of the nano-batch]

  int64_t num_targets() const;
  bool operator==(const NanoBatchSource&) const = default;
};

using Batch = std::vector<NanoBatchSource>;  // [nano_batches]

class BatchStream {
 public:
  /// All documents of a data set, by their lengths in tokens. Throws Error(kConfig) for options out
  /// of range, Error(kData) if there is no token at all. Documents of length 0 are skipped.
  BatchStream(std::vector<int64_t> document_lengths, BatchOptions options);
  /// Only the documents listed (indices into document_lengths, each at most once), e.g. one side of
  /// a split.
  BatchStream(std::vector<int64_t> document_lengths, std::vector<int64_t> documents,
              BatchOptions options);

  Batch next();
  /// The next call of next() yields batch `index`, counted from 0: all the state that a checkpoint
  /// needs.
  void seek(int64_t index);

  int64_t batch_index() const { return batch_index_; }
  /// Epoch of the next batch's first token, from 0.
  int64_t epoch() const { return epoch_; }
  /// Tokens of an epoch.
  int64_t epoch_tokens() const { return epoch_tokens_; }
  /// Next-token pairs of an epoch.
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
  std::vector<int64_t> documents_;  // those used, not empty, ascending
  BatchOptions options_;
  std::vector<Piece> pieces_;  // of documents_, in order
  int64_t epoch_tokens_ = 0;

  int64_t batch_index_ = 0;
  int64_t epoch_ = 0;
  std::vector<int64_t> order_;  // indices of pieces_, shuffled for epoch_
  int64_t position_ = 0;        // in order_
  int64_t offset_ = 0;          // next token of piece order_[position_]
};

struct DocumentSplit {
  std::vector<int64_t> train;       // ascending
  std::vector<int64_t> validation;  // ascending
};

/// Sets round(num_documents x validation_fraction) documents aside, chosen by `seed`; with a
/// fraction above 0 at least one, if there are two or more; never all. Throws Error(kConfig) unless
/// 0 <= validation_fraction < 1.
DocumentSplit split_documents(int64_t num_documents, double validation_fraction, uint64_t seed);

}  // namespace distca
