#pragma once
// The parts that both halves of the validator use: the list of what they found wrong, and items
// sorted by document. The first half (validate.cc) checks layout and tasks, and calls the second
// (check_load). An object belongs to one thread.

#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "distca/plan/validate.h"

namespace distca {

/// Keeps the first `most` lines, and counts those beyond.
class Violations {
 public:
  explicit Violations(size_t most) : most_(most) {}

  template <typename... Args>
  void report(fmt::format_string<Args...> format, Args&&... args) {
    if (lines_.size() < most_) {
      lines_.push_back(fmt::format(format, std::forward<Args>(args)...));
    } else {
      ++more_;
    }
  }
  bool none() const { return lines_.empty() && more_ == 0; }
  std::vector<std::string> lines() && {
    if (more_ > 0) lines_.push_back(fmt::format("and {} more", more_));
    return std::move(lines_);
  }

 private:
  size_t most_;
  size_t more_ = 0;
  std::vector<std::string> lines_;
};

/// Keeps the items of all documents in one array, those of a document in the order in which they
/// were added.
template <typename Item>
class ByDocument {
 public:
  explicit ByDocument(size_t documents) : begin_(documents + 1, 0) {}

  void add(int64_t document, const Item& item) {
    added_.push_back({document, item});
    ++begin_[document + 1];
  }
  /// Call it once, after the last add() and before items are read.
  void group() {
    for (size_t i = 1; i < begin_.size(); ++i) begin_[i] += begin_[i - 1];
    std::vector<size_t> next = begin_;
    items_.resize(added_.size());
    for (auto& [document, item] : added_) items_[next[document]++] = item;
    added_.clear();
  }
  size_t num_documents() const { return begin_.size() - 1; }
  std::span<Item> operator[](size_t document) {
    return std::span(items_).subspan(begin_[document], begin_[document + 1] - begin_[document]);
  }
  std::span<const Item> operator[](size_t document) const {
    return std::span(items_).subspan(begin_[document], begin_[document + 1] - begin_[document]);
  }

 private:
  std::vector<size_t> begin_;  // [documents + 1]
  std::vector<std::pair<int64_t, Item>> added_;
  std::vector<Item> items_;
};

/// A segment whose document exists and has its range.
struct Held {
  Range tokens;
  int worker = 0;
};

/// The keys that at least one of these queries sees under the causal mask.
inline Range seen_keys(const Range& q, const Mask& mask) {
  const int64_t window_left = mask.window_left;
  return {window_left < 0 || window_left > q.begin ? 0 : q.begin - window_left, q.end};
}

/// The second half of the validator (validate_load.cc). It counts the load, bytes and memory of a
/// plan whose layout and tasks are right, in another way than accounting.h does. Reports what the
/// plan claims wrongly, caps that are exceeded, servers of capacity 0 that have load, and loads
/// above the tolerance that was asked for. `held` has ascending positions in each document, with
/// every token once. `tasks` has ascending servers in each document.
void check_load(const Plan& plan, const ValidateOptions& options, const ByDocument<Held>& held,
                const ByDocument<const Task*>& tasks, Violations& violations);

}  // namespace distca
