#include "distca/batch/document.h"

namespace distca {

NanoBatch NanoBatch::from_lengths(const std::vector<int64_t>& lengths) {
  NanoBatch batch;
  batch.documents.reserve(lengths.size());
  for (int64_t length : lengths) {
    batch.documents.push_back({static_cast<int64_t>(batch.documents.size()), length});
  }
  return batch;
}

int64_t NanoBatch::num_tokens() const {
  int64_t tokens = 0;
  for (const Document& document : documents) tokens += document.length;
  return tokens;
}

std::vector<int64_t> NanoBatch::cu_seqlens() const {
  std::vector<int64_t> offsets{0};
  offsets.reserve(documents.size() + 1);
  for (const Document& document : documents) offsets.push_back(offsets.back() + document.length);
  return offsets;
}

}  // namespace distca
