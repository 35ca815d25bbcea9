#pragma once
// Figures about a data set: how long its documents are, in which of them the attention work lies,
// and how well its tokens can be predicted by counting alone. Any thread may call the functions.
//
//   const IndexedDataset data("data/stdlib");
//   const LengthStatistics lengths = length_statistics(data.document_lengths());
//   const std::optional<Entropies> entropies = token_entropies(data);

#include <cstdint>
#include <optional>
#include <vector>

#include "distca/batch/indexed_dataset.h"

namespace distca {

/// The documents of begin to 2 begin - 1 tokens. The bucket with begin 0 holds the empty ones.
struct LengthBucket {
  int64_t begin = 0;
  int64_t documents = 0;
  int64_t tokens = 0;
  double pairs = 0;  // causal (query, key) pairs: L (L + 1) / 2 for a document of L tokens
};

struct LengthStatistics {
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t median = 0;   // tokens; the lower of two middle lengths
  int64_t longest = 0;  // tokens
  double pairs = 0;     // causal (query, key) pairs
  /// The share of all pairs that lies in the longest 1 % of the documents (rounded up to whole
  /// documents), and in the longest 10 %.
  double longest_1_percent_share = 0;
  double longest_10_percent_share = 0;
  std::vector<LengthBucket> histogram;  // ascending; empty buckets are left out
};

LengthStatistics length_statistics(const std::vector<int64_t>& lengths);

/// The entropy of the data set's tokens, in nats for each token. A model that only counts reaches
/// this loss on the very tokens that it has counted, and does worse on others.
struct Entropies {
  double unigram = 0;  // H(token)
  /// H(token | the token before it in the document). It is absent where there are too few pairs for
  /// it to mean anything about other text.
  std::optional<double> bigram;
};

inline constexpr int64_t kMaxCountedVocabulary = 4096;
inline constexpr int64_t kMaxCountedTokens = int64_t{1} << 26;  // takes some tenths of a second
/// Bigram entropy is given only if each distinct pair occurs this often on average.
inline constexpr int64_t kLeastPairCount = 10;

/// Returns nothing for a data set with ids below 0 or of kMaxCountedVocabulary and more, or with
/// more than kMaxCountedTokens tokens. Reads all tokens twice.
std::optional<Entropies> token_entropies(const IndexedDataset& dataset);

}  // namespace distca
