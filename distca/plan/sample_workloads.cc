#include "distca/plan/sample_workloads.h"

#include "distca/base/error.h"
#include "distca/base/integers.h"
#include "distca/base/random.h"

namespace distca {
namespace {

constexpr int64_t kLong = 65'536;
constexpr int kLongCopies = 4;
constexpr int64_t kLengthMultiple = 16;
constexpr double kProlongShare = 0.3;  // share of the long documents that become as long as allowed

/// The documents of one pass over the list, in random order.
std::vector<int64_t> one_pass(const std::vector<int64_t>& lengths, const SampleOptions& options,
                              uint64_t pass) {
  Random random(options.seed, pass);
  std::vector<int64_t> kept;
  for (const int64_t length : lengths) {
    if (length < kLong) kept.push_back(length);
  }
  kept.resize(kept.size() / 2);
  for (const int64_t length : lengths) {
    if (length >= kLong) kept.insert(kept.end(), kLongCopies, length);
  }
  for (int64_t& length : kept) {
    if (options.kind == SampleKind::kPretrain) {
      length = ceil_div(length * options.max_document_tokens, kLong);
    } else if (length >= kLong && random.uniform() < kProlongShare) {
      length = options.max_document_tokens;
    }
    length = round_up(length, kLengthMultiple);
  }
  random.shuffle(std::span(kept));
  return kept;
}

}  // namespace

std::vector<NanoBatch> sample_workloads(const std::vector<int64_t>& lengths,
                                        const SampleOptions& options) {
  const int64_t batch_tokens = options.ranks * options.tokens_per_rank;
  const int64_t sequence_tokens = options.max_document_tokens;
  DISTCA_THROW_IF(batch_tokens < 1 || sequence_tokens < 1 || batch_tokens % sequence_tokens != 0 ||
                      sequence_tokens % kLengthMultiple != 0,
                  ErrorKind::kData,
                  "a nano-batch of {} x {} tokens is no whole number of sequences of {} tokens, a "
                  "multiple of {}",
                  options.ranks, options.tokens_per_rank, sequence_tokens, kLengthMultiple);
  std::vector<NanoBatch> nano_batches;
  std::vector<int64_t> documents;
  size_t next = 0;
  uint64_t pass = 0;
  int64_t rest = 0;  // tokens left of the document at hand
  for (int batch = 0; batch < options.count; ++batch) {
    std::vector<int64_t> pieces;
    for (int64_t used = 0; used < batch_tokens;) {
      if (rest == 0 && next == documents.size()) {
        documents = one_pass(lengths, options, pass++);
        next = 0;
        DISTCA_THROW_IF(documents.empty(), ErrorKind::kData,
                        "a list of {} document lengths leaves none to sample", lengths.size());
      }
      if (rest == 0) rest = documents[next++];
      const int64_t room = sequence_tokens - used % sequence_tokens;
      const int64_t piece = std::min(rest, room);
      pieces.push_back(piece);
      used += piece;
      rest -= piece;
    }
    nano_batches.push_back(NanoBatch::from_lengths(pieces));
  }
  return nano_batches;
}

}  // namespace distca
