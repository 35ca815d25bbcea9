#include "distca/plan/balanced/layout_pool.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace distca {

RemainderPool::RemainderPool(std::vector<DocumentRemainder> documents)
    : whole_(std::move(documents)), after_(whole_.size() + 1), before_(whole_.size() + 1) {
  std::iota(after_.begin(), after_.end(), 0);
  std::iota(before_.begin(), before_.end(), 0);
}

size_t RemainderPool::follow(std::vector<size_t>& links, size_t index) {
  while (links[index] != index) {
    links[index] = links[links[index]];
    index = links[index];
  }
  return index;
}

RemainderPool::Spot RemainderPool::above(int64_t length) const {
  const DocumentRemainder document{0, {0, length}};
  const auto before = [&](const std::vector<DocumentRemainder>& remainders) {
    return static_cast<size_t>(std::ranges::lower_bound(remainders, document, LowerLoadPerToken()) -
                               remainders.begin());
  };
  return {before(whole_), before(parts_)};
}

std::optional<RemainderPool::Item> RemainderPool::next(Spot& spot) {
  spot.whole = follow(after_, spot.whole);
  const bool any_whole = spot.whole < whole_.size();
  const bool any_part = spot.part < parts_.size();
  if (!any_whole && !any_part) return std::nullopt;
  if (!any_part || (any_whole && LowerLoadPerToken()(whole_[spot.whole], parts_[spot.part])))
    return whole_item(spot.whole++);
  return part_item(spot.part++);
}

std::optional<RemainderPool::Item> RemainderPool::previous(Spot& spot) {
  spot.whole = last_whole(spot.whole);
  if (spot.whole == 0 && spot.part == 0) return std::nullopt;
  if (spot.part == 0 ||
      (spot.whole > 0 && LowerLoadPerToken()(parts_[spot.part - 1], whole_[spot.whole - 1]))) {
    return whole_item(--spot.whole);
  }
  return part_item(--spot.part);
}

void RemainderPool::insert(const DocumentRemainder& part) {
  parts_.insert(std::ranges::lower_bound(parts_, part, LowerLoadPerToken()), part);
}

void RemainderPool::take(const Item& item) {
  if (item.whole) {
    after_[item.index] = item.index + 1;
    before_[item.index + 1] = item.index;
  } else {
    parts_.erase(parts_.begin() + static_cast<std::ptrdiff_t>(item.index));
  }
}

}  // namespace distca
