#pragma once
// The documents and parts of documents that layout `balanced` has not placed yet, ordered by their
// load for each token. A pool belongs to one thread, even for lookups, because each lookup shortens
// the links that the next one follows.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "distca/base/integers.h"

namespace distca {

/// The remainder of a document or of a part of it.
struct DocumentRemainder {
  int64_t document = 0;  // Document::id
  Range rows;
};

/// Orders remainders by their load for each token, which rises with the middle of their rows.
struct LowerLoadPerToken {
  bool operator()(const DocumentRemainder& a, const DocumentRemainder& b) const {
    return std::tuple(a.rows.begin + a.rows.end, a.document, a.rows.begin) <
           std::tuple(b.rows.begin + b.rows.end, b.document, b.rows.begin);
  }
};

/// A pool of remainders, lightest first. Documents that were never cut are an array with holes. The
/// parts of the others, which are few at a time, are a sorted array of their own. A step or a
/// removal takes amortized O(log documents), and for a part O(parts) more.
class RemainderPool {
 public:
  /// A place between two remainders, given by the first whole document and the first part after it.
  /// Valid until the pool changes.
  struct Spot {
    size_t whole = 0;
    size_t part = 0;
  };
  /// A remainder, and its index among the whole documents or the parts. Valid until the pool
  /// changes.
  struct Item {
    DocumentRemainder remainder;
    size_t index = 0;
    bool whole = true;
  };

  RemainderPool() : RemainderPool(std::vector<DocumentRemainder>()) {}
  /// `documents` are whole ones, in the order of LowerLoadPerToken.
  explicit RemainderPool(std::vector<DocumentRemainder> documents);

  /// The place before the first remainder that is no lighter than a document of this length.
  Spot above(int64_t length) const;
  /// Returns the remainder after the spot, or before it, and moves the spot past it. Nothing at the
  /// end.
  std::optional<Item> next(Spot& spot);
  std::optional<Item> previous(Spot& spot);
  /// Returns the heaviest remainder before the spot that fits. If a whole document fits, shorter
  /// ones must fit too.
  template <typename Fits>
  std::optional<Item> heaviest(const Spot& spot, const Fits& fits);

  void insert(const DocumentRemainder& part);
  void take(const Item& item);

 private:
  /// Follows the links from `index` to their end, and halves the way for the next time.
  static size_t follow(std::vector<size_t>& links, size_t index);
  size_t last_whole(size_t end) { return follow(before_, end); }
  Item whole_item(size_t index) const { return {whole_[index], index, true}; }
  Item part_item(size_t index) const { return {parts_[index], index, false}; }

  std::vector<DocumentRemainder> whole_;
  std::vector<size_t> after_;   // [whole_ + 1] towards the first that is left from there on
  std::vector<size_t> before_;  // [whole_ + 1] towards the end of the last one left before
  std::vector<DocumentRemainder> parts_;
};

template <typename Fits>
std::optional<RemainderPool::Item> RemainderPool::heaviest(const Spot& spot, const Fits& fits) {
  size_t end = last_whole(spot.whole);
  if (end > 0 && !fits(whole_[end - 1])) {
    const auto first = std::partition_point(
        whole_.begin(), whole_.begin() + static_cast<std::ptrdiff_t>(end - 1), fits);
    end = last_whole(static_cast<size_t>(first - whole_.begin()));
  }
  for (size_t part = spot.part; part-- > 0;) {
    if (end > 0 && LowerLoadPerToken()(parts_[part], whole_[end - 1])) break;
    if (fits(parts_[part])) return part_item(part);
  }
  if (end == 0) return std::nullopt;
  return whole_item(end - 1);
}

}  // namespace distca
