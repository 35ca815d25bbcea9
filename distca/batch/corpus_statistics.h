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

/// In nats a token, of the data set itself: what a model reaches that only counts, on the very
/// tokens that it counted; on others it does worse.
struct Entropies {
  double unigram = 0;            // H(token)
  std::optional<double> bigram;  // H(token | the one before it in the document); none where pairs
                                 // are too few for it to mean anything on other text
};

inline constexpr int64_t kMaxCountedVocabulary = 4096;
inline constexpr int64_t kMaxCountedTokens = int64_t{1} << 26;  // some tenths of a second
/// Each distinct pair is there so often on average, or there is no bigram entropy.
inline constexpr int64_t kLeastPairCount = 10;

/// None for ids of kMaxCountedVocabulary and more, nor of more than kMaxCountedTokens. Reads all
/// tokens, twice.
std::optional<Entropies> token_entropies(const IndexedDataset& dataset);

}  // namespace distca
