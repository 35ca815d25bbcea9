#pragma once
// Finds the worker that holds given tokens of a document. A layout lists segments by worker; Homes
// lists them by document.
//
//   const Homes homes(plan.layout, plan.nano_batch.documents.size());
//   homes.for_each_part(task.document, task.kv, [](const HomeSegment& home, const Range& part) {
//     fmt::print("worker {} holds {} of the keys\n", home.worker, part.size());
//   });
//
// Any thread may use a Homes.

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "distca/batch/layout.h"

namespace distca {

/// A segment of the layout, and the worker that holds it.
struct HomeSegment {
  int64_t document = 0;
  Range tokens;  // positions in the document
  int worker = 0;
  int64_t row = 0;  // row of the first token, in the worker's local tensors
};

class Homes {
 public:
  /// Documents are numbered from 0 to num_documents - 1.
  Homes(const Layout& layout, size_t num_documents);

  const std::vector<HomeSegment>& all() const { return segments_; }  // by document, position
  /// The segments of one document, by position.
  std::span<const HomeSegment> of(int64_t document) const {
    return std::span(segments_).subspan(first_[document], first_[document + 1] - first_[document]);
  }
  /// Returns true if the worker holds some of the document.
  bool holds(int worker, int64_t document) const {
    return std::ranges::count(of(document), worker, &HomeSegment::worker) > 0;
  }
  /// Calls visit(segment, part) for each segment that holds a part of `tokens`, in ascending order.
  template <typename Visit>
  void for_each_part(int64_t document, const Range& tokens, const Visit& visit) const {
    if (tokens.empty()) return;
    const std::span<const HomeSegment> segments = of(document);
    auto segment = std::ranges::partition_point(
        segments, [&](const HomeSegment& home) { return home.tokens.end <= tokens.begin; });
    for (; segment != segments.end() && segment->tokens.begin < tokens.end; ++segment) {
      visit(*segment, intersect(segment->tokens, tokens));
    }
  }

 private:
  std::vector<HomeSegment> segments_;
  std::vector<size_t> first_;  // [documents + 1] index in segments_
};

}  // namespace distca
