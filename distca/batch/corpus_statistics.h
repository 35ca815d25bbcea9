#pragma once
// What a data set is like: lengths, where its attention work lies, and how far counting alone
// predicts its tokens. Any thread.

#include <cstdint>
#include <optional>
#include <vector>

#include "distca/batch/indexed_dataset.h"

namespace distca {

/// Documents of begin to 2 begin - 1 tokens; the first bucket, begin 0, holds the empty ones.
struct LengthBucket {
  int64_t begin = 0;
  int64_t documents = 0;
  int64_t tokens = 0;
  double pairs = 0;  // causal (query, key) pairs, L (L + 1) / 2 a document
};

struct LengthStatistics {
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t median = 0;  // tokens; the lower of two
  int64_t longest = 0;
  double pairs = 0;
  double longest_1_percent_share = 0;   // of pairs, in the longest 1 % of documents (rounded up)
  double longest_10_percent_share = 0;  // likewise 10 %
  std::vector<LengthBucket> histogram;  // ascending, without empty buckets
};

LengthStatistics length_statistics(const std::vector<int64_t>& lengths);

/// In nats a token, of the data set itself; a model that only counts cannot get below them.
struct Entropies {
  double unigram = 0;  // H(token)
  double bigram = 0;   // H(token | the one before it in the document)
};

inline constexpr int64_t kMaxCountedVocabulary = 4096;

/// None for ids of kMaxCountedVocabulary and more. Reads all tokens.
std::optional<Entropies> token_entropies(const IndexedDataset& dataset);

}  // namespace distca
