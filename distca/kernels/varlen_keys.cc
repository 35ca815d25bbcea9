#include "distca/kernels/varlen_keys.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "distca/base/error.h"
#include "distca/kernels/mask_parts.h"
#include "distca/kernels/row_groups.h"

namespace distca::kernels {
namespace {

// --- cutting -------------------------------------------------------------------------------------

Range all_keys(const Task& task) {
  if (task.keys.empty()) return {};
  return {task.keys.front().position, task.keys.back().position + task.keys.back().tokens};
}

void cut_task(size_t index, const Task& task, std::vector<VarlenPart>& parts) {
  DISTCA_CHECK(keys_are_consecutive(task.keys), "task {}: a gap between its keys", index);
  const Reach reach = reach_of(task.mask);
  const int64_t left = reach.left, right = reach.right;
  const Range keys = all_keys(task);
  if (keys.empty()) return;
  const Range queries = intersect({task.q_position, task.q_position + task.q_tokens},
                                  {keys.begin - right, keys.end + left});
  if (queries.empty()) return;
  // Queries from here on see all keys to the end; the one before it, exactly to the end.
  const int64_t all = std::clamp(keys.end - right, queries.begin, queries.end);
  const auto add = [&](const Range& part, bool right_limited) {
    if (part.empty()) return;
    const Range seen = intersect(keys, {part.begin - left, part.end + right});
    int64_t window = -1;
    if (task.mask.window_left >= 0 && right_limited) window = left + right;
    if (!right_limited && part.end - 1 - left > seen.begin) window = left + seen.end - part.end;
    parts.push_back({.task = index,
                     .queries = part,
                     .keys = seen,
                     .right_limited = right_limited,
                     .window_left = window,
                     .first_key = keys.begin});
  };
  add({queries.begin, all}, /*right_limited=*/true);
  add({all, queries.end}, /*right_limited=*/false);
}

// --- keys read in place --------------------------------------------------------------------------

/// Sets the parts' region; `order`: those read in place, by where their keys lie.
void find_regions(const std::vector<size_t>& order, std::vector<VarlenPart>& parts,
                  bool over_gaps) {
  for (size_t begin = 0, next; begin < order.size(); begin = next) {
    const int64_t buffer = parts[order[begin]].buffer;
    int64_t end = parts[order[begin]].row;
    size_t first_part = order[begin];
    for (next = begin; next < order.size(); ++next) {
      const VarlenPart& part = parts[order[next]];
      if (part.buffer != buffer || (!over_gaps && part.row > end)) break;
      end = std::max(end, part.row + part.keys.size());
      first_part = std::min(first_part, order[next]);
    }
    for (size_t i = begin; i < next; ++i) parts[order[i]].region = first_part;
  }
}

// --- keys gathered -------------------------------------------------------------------------------

struct Gathered {
  size_t part;
  std::vector<KeyRange> ranges;
};

/// Returns true if both ranges have a position in the same row of the same buffer, so that one can
/// go on where the other ends.
bool in_line(const KeyRange& a, const KeyRange& b) {
  return a.buffer == b.buffer && a.row - a.position == b.row - b.position;
}

int64_t end_of(const KeyRange& range) { return range.position + range.tokens; }

/// Ranges in ascending order of positions, each key once; none if one position is in two places.
std::optional<std::vector<KeyRange>> joined(std::vector<KeyRange> ranges) {
  std::ranges::stable_sort(ranges, {}, &KeyRange::position);
  std::vector<KeyRange> all;
  for (const KeyRange& range : ranges) {
    if (all.empty() || end_of(all.back()) < range.position ||
        (end_of(all.back()) == range.position && !in_line(all.back(), range))) {
      all.push_back(range);
    } else if (in_line(all.back(), range)) {
      all.back().tokens = std::max(end_of(all.back()), end_of(range)) - all.back().position;
    } else {
      return std::nullopt;
    }
  }
  return all;
}

/// Appends the ranges to what is gathered and sets the row of those parts whose keys they are.
void gather(const std::vector<KeyRange>& ranges, std::span<const Gathered* const> of,
            std::vector<VarlenPart>& parts, VarlenPlan& plan) {
  const size_t first = plan.gathered.size();
  for (const auto& [buffer, row, tokens, position] : ranges)
    plan.gathered.push_back({buffer, row, tokens, plan.gathered_rows()});
  for (const Gathered* one : of) {
    VarlenPart& part = parts[one->part];
    const auto range = std::ranges::find_if(
        ranges, [&](const KeyRange& keys) { return part.keys.begin < end_of(keys); });
    part.row =
        plan.gathered[first + (range - ranges.begin())].row + part.keys.begin - range->position;
  }
}

/// Parts that have keys in common, directly or by way of others, are one document's; in the order
/// of the documents' first parts.
std::map<int64_t, std::vector<const Gathered*>> documents(const std::vector<Gathered>& all) {
  std::vector<RowUse> uses;
  for (size_t i = 0; i < all.size(); ++i) {
    for (const KeyRange& range : all[i].ranges) {
      uses.push_back({range.buffer,
                      {range.row, range.row + range.tokens},
                      range.position,
                      static_cast<int64_t>(i)});
    }
  }
  Groups groups(all.size());
  for_each_overlap(std::move(uses), [&](std::span<const RowUse> shared) {
    for (const RowUse& use : shared) groups.join(shared[0].user, use.user);
  });
  std::map<int64_t, std::vector<const Gathered*>> by_group;
  for (size_t i = 0; i < all.size(); ++i) {
    by_group[groups.find(static_cast<int64_t>(i))].push_back(&all[i]);
  }
  return by_group;
}

void gather_all(const std::vector<Gathered>& all, std::vector<VarlenPart>& parts,
                VarlenPlan& plan) {
  for (const auto& [first, document] : documents(all)) {
    std::vector<KeyRange> ranges;
    for (const Gathered* part : document) {
      ranges.insert(ranges.end(), part->ranges.begin(), part->ranges.end());
    }
    if (const auto whole = joined(std::move(ranges))) {
      gather(*whole, document, parts, plan);
    } else {
      for (const Gathered* part : document) gather(part->ranges, {&part, 1}, parts, plan);
    }
  }
}

}  // namespace

bool loads_aligned(const Rows& rows, ScalarType type) {
  const int64_t bytes = element_bytes(type);
  return reinterpret_cast<uintptr_t>(rows.data) % kVarlenAlignment == 0 &&
         rows.token_stride * bytes % kVarlenAlignment == 0 &&
         rows.head_stride * bytes % kVarlenAlignment == 0;
}

std::vector<bool> aligned_keys(ScalarType type, const TaskList& list) {
  std::vector<bool> aligned;
  for (const KeyBuffer& buffer : list.keys)
    aligned.push_back(loads_aligned(buffer.k, type) && loads_aligned(buffer.v, type));
  return aligned;
}

bool keys_are_consecutive(std::span<const KeyRange> keys) {
  for (size_t i = 1; i < keys.size(); ++i) {
    if (keys[i].position != end_of(keys[i - 1])) return false;
  }
  return true;
}

bool is_fused(const Shape& shape, ScalarType type, const Task& task) {
  constexpr int64_t kMostOperatorHeadDim = 256;
  const bool fits =
      shape.head_dim_qk == shape.head_dim_v && shape.head_dim_qk <= kMostOperatorHeadDim;
  if (!fits || !keys_are_consecutive(task.keys)) return false;
  return type == ScalarType::kBFloat16 ||
         (type == ScalarType::kFloat32 && task.mask.window_left < 0);
}

std::vector<VarlenPart> cut_tasks(std::span<const Task> tasks) {
  std::vector<VarlenPart> parts;
  for (size_t i = 0; i < tasks.size(); ++i) cut_task(i, tasks[i], parts);
  return parts;
}

std::vector<KeyRange> key_ranges(const Task& task, const Range& keys) {
  std::vector<KeyRange> ranges;
  for (const KeyRange& range : task.keys) {
    const Range part = intersect(keys, {range.position, end_of(range)});
    if (part.empty()) continue;
    if (!ranges.empty() && in_line(ranges.back(), range)) {
      ranges.back().tokens += part.size();
    } else {
      const int64_t row = range.row + part.begin - range.position;
      ranges.push_back({range.buffer, row, part.size(), part.begin});
    }
  }
  return ranges;
}

void place_keys(ScalarType type, const TaskList& list, std::vector<VarlenPart>& parts,
                bool over_gaps, VarlenPlan& plan) {
  std::vector<size_t> in_place;
  std::vector<Gathered> gathered;
  const std::vector<bool> aligned = aligned_keys(type, list);
  for (size_t i = 0; i < parts.size(); ++i) {
    VarlenPart& part = parts[i];
    std::vector<KeyRange> ranges = key_ranges(list.tasks[part.task], part.keys);
    if (ranges.size() == 1 && aligned[ranges[0].buffer]) {
      part.buffer = ranges[0].buffer;
      part.row = ranges[0].row;
      in_place.push_back(i);
    } else {
      part.buffer = kGathered;
      part.region = parts.size();
      gathered.push_back({i, std::move(ranges)});
    }
  }
  std::ranges::stable_sort(
      in_place, {}, [&](size_t part) { return std::tie(parts[part].buffer, parts[part].row); });
  find_regions(in_place, parts, over_gaps);
  gather_all(gathered, parts, plan);
}

}  // namespace distca::kernels
