#pragma once
// Documents and parts of documents from which layout `balanced` takes, by their load per token. Not
// thread-safe, lookups included: they shorten the way for the next one.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "distca/base/integers.h"

namespace distca {

/// What is left of a document, or of a part of it.
struct Rest {
  int64_t document = 0;  // Document::id
  Range rows;
};

struct Lighter {  // in load per token, rows being alike
  bool operator()(const Rest& a, const Rest& b) const {
    return std::tuple(a.rows.begin + a.rows.end, a.document, a.rows.begin) <
           std::tuple(b.rows.begin + b.rows.end, b.document, b.rows.begin);
  }
};

/// Lightest first. Documents that were never cut are an array with holes; the parts of the others,
/// few at a time, a sorted array beside it. A step or a removal takes amortized O(log documents),
/// plus O(parts) where it is a part's.
class RestPool {
 public:
  /// A place between two rests; the first ones after it. Good until the pool changes.
  struct Spot {
    size_t whole = 0;
    size_t part = 0;
  };
  /// Good until the pool changes.
  struct Item {
    Rest rest;
    size_t index = 0;
    bool whole = true;
  };

  RestPool() : RestPool(std::vector<Rest>()) {}
  /// `documents`: whole ones, in the order of Lighter.
  explicit RestPool(std::vector<Rest> documents);

  /// Before the first that is no lighter than a document of this length.
  Spot above(int64_t length) const;
  /// The rest after the spot, or before it, which is passed; nothing at the end.
  std::optional<Item> next(Spot& spot);
  std::optional<Item> previous(Spot& spot);
  /// The heaviest before the spot that fits, if of whole documents the shorter ones do.
  template <typename Fits>
  std::optional<Item> heaviest(const Spot& spot, const Fits& fits);

  void insert(const Rest& part);
  void take(const Item& item);

 private:
  /// Where the links from `index` end; halves the way.
  static size_t follow(std::vector<size_t>& links, size_t index);
  size_t last_whole(size_t end) { return follow(before_, end); }

  std::vector<Rest> whole_;
  std::vector<size_t> after_;   // [whole_ + 1] towards the first that is left from there
  std::vector<size_t> before_;  // [whole_ + 1] towards the end of the last that is left before
  std::vector<Rest> parts_;
};

template <typename Fits>
std::optional<RestPool::Item> RestPool::heaviest(const Spot& spot, const Fits& fits) {
  size_t end = last_whole(spot.whole);
  if (end > 0 && !fits(whole_[end - 1])) {
    const auto first = std::partition_point(
        whole_.begin(), whole_.begin() + static_cast<std::ptrdiff_t>(end - 1), fits);
    end = last_whole(static_cast<size_t>(first - whole_.begin()));
  }
  for (size_t part = spot.part; part-- > 0;) {
    if (end > 0 && Lighter()(parts_[part], whole_[end - 1])) break;
    if (fits(parts_[part])) return Item{parts_[part], part, false};
  }
  if (end == 0) return std::nullopt;
  return Item{whole_[end - 1], end - 1, true};
}

}  // namespace distca
