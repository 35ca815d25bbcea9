#include "distca/batch/corpus_statistics.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <span>

#include "distca/base/integers.h"

namespace distca {
namespace {

double causal_pairs(int64_t length) {
  return static_cast<double>(length) * static_cast<double>(length + 1) / 2;
}

double share_of_longest(const std::vector<int64_t>& descending, int64_t percent, double all_pairs) {
  if (all_pairs == 0) return 0;
  const int64_t count = ceil_div(static_cast<int64_t>(descending.size()) * percent, 100);
  double pairs = 0;
  for (int64_t i = 0; i < count; ++i) pairs += causal_pairs(descending[i]);
  return pairs / all_pairs;
}

/// -sum p ln p x (total / of), over the counts of one distribution.
double weighted_entropy(std::span<const int64_t> counts, double of) {
  const auto total = static_cast<double>(std::reduce(counts.begin(), counts.end()));
  double entropy = 0;
  for (const int64_t count : counts) {
    if (count > 0)
      entropy += static_cast<double>(count) / of * std::log(total / static_cast<double>(count));
  }
  return entropy;
}

}  // namespace

LengthStatistics length_statistics(const std::vector<int64_t>& lengths) {
  LengthStatistics result;
  std::map<int64_t, LengthBucket> buckets;
  for (const int64_t length : lengths) {
    const auto begin = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(length)));
    LengthBucket& bucket = buckets[begin];
    bucket.begin = begin;
    ++bucket.documents;
    bucket.tokens += length;
    bucket.pairs += causal_pairs(length);
  }
  for (const auto& [begin, bucket] : buckets) {
    result.documents += bucket.documents;
    result.tokens += bucket.tokens;
    result.pairs += bucket.pairs;
    result.histogram.push_back(bucket);
  }
  if (lengths.empty()) return result;

  std::vector<int64_t> descending = lengths;
  std::ranges::sort(descending, std::greater());
  result.median = descending[descending.size() / 2];
  result.longest = descending.front();
  result.longest_1_percent_share = share_of_longest(descending, 1, result.pairs);
  result.longest_10_percent_share = share_of_longest(descending, 10, result.pairs);
  return result;
}

std::optional<Entropies> token_entropies(const IndexedDataset& dataset) {
  if (dataset.num_tokens() > kMaxCountedTokens) return std::nullopt;
  const int64_t largest = dataset.largest_id();
  if (largest >= kMaxCountedVocabulary) return std::nullopt;
  const int64_t vocabulary = largest + 1;
  std::vector<int64_t> unigrams(static_cast<size_t>(vocabulary));
  std::vector<int64_t> bigrams(static_cast<size_t>(vocabulary * vocabulary));
  std::vector<int32_t> buffer(1 << 16);  // tokens that fit the caches
  for (int64_t document = 0; document < dataset.num_documents(); ++document) {
    const int64_t length = dataset.document_length(document);
    for (int64_t begin = 0, previous = 0; begin < length; begin += std::ssize(buffer)) {
      const int64_t count = std::min(length - begin, std::ssize(buffer));
      const std::span<int32_t> piece = std::span(buffer).first(static_cast<size_t>(count));
      if (dataset.read(document, begin, piece)) return std::nullopt;  // an id below 0
      for (int64_t i = 0; i < count; ++i) {
        ++unigrams[piece[i]];
        if (begin + i > 0) ++bigrams[previous * vocabulary + piece[i]];
        previous = piece[i];
      }
    }
  }
  Entropies result;
  result.unigram = weighted_entropy(unigrams, static_cast<double>(dataset.num_tokens()));
  const int64_t num_bigrams = std::reduce(bigrams.begin(), bigrams.end());
  const int64_t distinct = std::ranges::count_if(bigrams, [](int64_t count) { return count > 0; });
  if (num_bigrams < kLeastPairCount * distinct) return result;
  result.bigram = 0;
  for (int64_t token = 0; token < vocabulary; ++token) {
    const auto after = std::span(bigrams).subspan(token * vocabulary, vocabulary);
    *result.bigram += weighted_entropy(after, static_cast<double>(num_bigrams));
  }
  return result;
}

}  // namespace distca
