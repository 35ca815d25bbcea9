#pragma once
// The data sets of a run as one: their documents are numbered through, set by set. A run has one
// data set, or several with weights, which data.prefix names as Megatron's --data-path does:
//
//   const DataBlend one("data/stdlib");
//   const DataBlend two("0.7 data/a 0.3 data/b");  // 7 of 10 tokens are of data/a
//
// Errors: Error(kConfig), in one line, for weights that cannot be read; Error(kData) as
// IndexedDataset's. Thread rule: any thread may read.

#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "distca/base/integers.h"
#include "distca/batch/batch_stream.h"
#include "distca/batch/indexed_dataset.h"

namespace distca {

/// A set of a blend, by name.
struct BlendPart {
  std::string prefix;
  /// Its share of the tokens is weight / (sum of all weights). All weights together have no common
  /// divisor, so equal shares have equal weights.
  int64_t weight = 1;
};

/// The parts that data.prefix names. Text without a space is one PREFIX, and so is text with spaces
/// if such a data set is there; all else is WEIGHT PREFIX WEIGHT PREFIX .... A weight is a number
/// from 1e-9 to 1e9 and is rounded to a multiple of 1e-9. Throws Error(kConfig) for a weight that
/// is missing, no such number or without a prefix, and for a prefix that is named twice.
std::vector<BlendPart> parse_blend(const std::string& text);

class DataBlend {
 public:
  /// Opens all sets that `text` names (parse_blend).
  explicit DataBlend(const std::string& text);

  int64_t num_documents() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t num_tokens() const { return std::reduce(lengths_.begin(), lengths_.end()); }
  int64_t document_length(int64_t document) const { return lengths_[document]; }  // tokens
  const std::vector<int64_t>& document_lengths() const { return lengths_; }

  /// Where each set begins in the numbering, and its weight: what a BatchStream is told.
  const std::vector<StreamSet>& sets() const { return sets_; }
  int64_t num_sets() const { return static_cast<int64_t>(sets_.size()); }
  const IndexedDataset& set(int64_t index) const { return *data_[index]; }
  /// PREFIX of a set, as it was given.
  const std::string& prefix(int64_t index) const { return parts_[index].prefix; }
  /// The numbers of a set's documents.
  Range documents_of(int64_t index) const;

  /// Splits every set by itself, as split_documents() does.
  DocumentSplit split(double validation_fraction, uint64_t seed) const;

  /// The set that a document belongs to.
  int64_t set_of(int64_t document) const;
  /// Reads as IndexedDataset does. Errors and a BadToken name the set's own number of the document.
  std::optional<BadToken> read(int64_t document, int64_t offset, std::span<int32_t> out,
                               int64_t vocab_size) const;

  /// Returns "40 documents, 13,673 tokens, contents 0123456789abcdef", for example; of several
  /// sets, that of each with its share. Other contents or shares have other words.
  std::string summary() const;

 private:
  std::vector<BlendPart> parts_;
  std::vector<std::unique_ptr<const IndexedDataset>> data_;  // [sets]
  std::vector<StreamSet> sets_;
  std::vector<int64_t> lengths_;  // [documents of all sets] tokens
};

}  // namespace distca
