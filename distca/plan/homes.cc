#include "distca/plan/homes.h"

#include <tuple>

namespace distca {

Homes::Homes(const Layout& layout, size_t num_documents) : first_(num_documents + 1, 0) {
  for (int worker = 0; worker < layout.num_workers(); ++worker) {
    int64_t row = 0;
    for (const Segment& segment : layout.workers[worker]) {
      segments_.push_back({segment.document, segment.tokens, worker, row});
      row += segment.tokens.size();
      ++first_[segment.document + 1];
    }
  }
  std::sort(segments_.begin(), segments_.end(), [](const HomeSegment& a, const HomeSegment& b) {
    return std::tie(a.document, a.tokens) < std::tie(b.document, b.tokens);
  });
  for (size_t i = 1; i < first_.size(); ++i) first_[i] += first_[i - 1];
}

}  // namespace distca
