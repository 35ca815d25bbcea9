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
// A stream may be over several sets of documents with weights. Each has an order and epochs of its
// own. The next piece comes from the set that is furthest behind its share of the tokens so far,
// and of several such sets from the first.
//
// A stream belongs to one thread. Time: O(pieces) for each epoch, and O(documents of the batch x
// sets) for each batch.

#include <cstdint>
#include <span>
#include <vector>

#include "distca/base/json_field.h"
#include "distca/batch/document.h"

namespace distca {

struct BatchOptions {
  int64_t nano_batch_tokens = 0;    // tokens of every nano-batch, > 0
  int64_t nano_batches = 1;         // in a batch (an optimizer step), > 0
  int64_t max_document_tokens = 0;  // longer ones are cut; in 1 .. nano_batch_tokens
  uint64_t seed = 0;                // seed of the shuffles
};

/// Says where the tokens of one document of a nano-batch come from.
struct DocumentSource {
  int64_t document = 0;  // index in the data set
  int64_t offset = 0;    // place of its first token, in the document of the data set
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

/// Documents that share an epoch: from first_document up to the next set's.
struct StreamSet {
  int64_t first_document = 0;
  int64_t weight = 1;  // its share of the tokens is weight / (sum of all weights); > 0
};

class BatchStream {
 public:
  /// Streams all documents of a data set, which are given by their lengths in tokens. Documents of
  /// length 0 are skipped. Throws Error(kData) if there is no token at all. Options out of range
  /// are a CHECK: load_config() refuses them.
  BatchStream(std::vector<int64_t> document_lengths, BatchOptions options);
  /// Streams only the documents listed, for example one side of a split. `documents` holds indices
  /// into document_lengths, each at most once. `sets` ascend from document 0; one of which no token
  /// is listed is left out.
  BatchStream(std::vector<int64_t> document_lengths, std::vector<int64_t> documents,
              BatchOptions options, const std::vector<StreamSet>& sets = {{}});

  Batch next();
  /// Makes the next call of next() yield batch `index`, counted from 0. Time: O(pieces) for one
  /// set, O(all pieces before that batch) for several.
  void seek(int64_t index);
  /// The batch that next() yields and the position of every set. What restore() is given goes on
  /// there, in time O(pieces); it must be of the same documents, options and sets. Throws what
  /// JsonField throws for numbers that no such stream has.
  Json state() const;
  void restore(const JsonField& state);

  /// The sets with tokens, in their order.
  int64_t num_sets() const { return static_cast<int64_t>(sets_.size()); }
  /// The tokens of one epoch of a set.
  int64_t epoch_tokens(int64_t set = 0) const { return sets_[set].epoch_tokens; }
  /// Returns true if no set has begun its second epoch.
  bool is_within_first_epochs() const;

 private:
  struct Piece {
    int64_t document;
    int64_t offset;  // a multiple of max_document_tokens
  };
  struct Set {
    int64_t weight = 1;
    uint64_t number = 0;  // among all sets, also those without tokens
    std::vector<Piece> pieces;
    int64_t epoch_tokens = 0;

    int64_t epoch = 0;
    std::vector<int64_t> order;  // indices of pieces, shuffled for epoch
    int64_t position = 0;        // in order
    int64_t taken = 0;           // tokens of the whole pieces that the stream has passed

    const Piece& piece() const { return pieces[order[position]]; }
  };

  void add_set(const StreamSet& set, uint64_t number, std::span<const int64_t> documents);
  NanoBatchSource next_nano_batch();
  void rewind();
  int64_t furthest_behind() const;
  void shuffle_epoch(Set& set, int64_t epoch) const;
  void finish_piece();
  int64_t piece_length(const Piece& piece) const;

  std::vector<int64_t> lengths_;  // [documents of all sets] tokens
  BatchOptions options_;
  std::vector<Set> sets_;
  int64_t weights_ = 0;  // sum over all sets

  int64_t batch_index_ = 0;
  int64_t current_ = 0;  // the set of the next token
  int64_t offset_ = 0;   // place of the next token in its piece
};

struct DocumentSplit {
  std::vector<int64_t> train;       // ascending
  std::vector<int64_t> validation;  // ascending
};

/// Sets whole documents aside for validation: in an order that `seed` chooses, all that still fit
/// into validation_fraction of the tokens. With a fraction above 0 and two or more documents that
/// are not empty, at least one is set aside (the shortest, if none fits) and one is not. Empty
/// documents are trained on. A fraction outside of 0 <= f < 1 is a CHECK.
DocumentSplit split_documents(std::span<const int64_t> lengths, double validation_fraction,
                              uint64_t seed);

}  // namespace distca
