#include "distca/kernels/cpu/accumulation_order.h"

#include <algorithm>
#include <queue>
#include <thread>
#include <utility>

#include "distca/kernels/cpu/pause.h"
#include "distca/kernels/row_groups.h"

namespace distca::kernels {
namespace {

// Looks before a waiting thread gives its core away: an item that is running passes on within some
// tens of microseconds, but its thread may have lost its core.
constexpr int kLooksBeforeYield = 2000;

/// Items of families, each family's in order; of the families the one with the most left next.
/// `family_of`: [items]; `families`: their number.
std::vector<int64_t> order_by_rest(const std::vector<Item>& items,
                                   const std::vector<int64_t>& family_of, int64_t families) {
  std::vector<std::vector<int64_t>> members(families);
  std::vector<int64_t> rest(families);
  for (size_t i = 0; i < items.size(); ++i) {
    members[family_of[i]].push_back(static_cast<int64_t>(i));
    rest[family_of[i]] += items[i].cost;
  }
  std::priority_queue<std::pair<int64_t, int64_t>> next;  // cost that is left, -family
  for (int64_t f = 0; f < families; ++f) {
    if (!members[f].empty()) next.emplace(rest[f], -f);
  }
  std::vector<size_t> taken(families);
  std::vector<int64_t> order;
  order.reserve(items.size());
  while (!next.empty()) {
    const int64_t family = -next.top().second;
    next.pop();
    const int64_t item = members[family][taken[family]++];
    rest[family] -= items[item].cost;
    order.push_back(item);
    if (taken[family] < members[family].size()) next.emplace(rest[family], -family);
  }
  return order;
}

}  // namespace

SharedRows find_shared_rows(std::span<const Task> tasks) {
  std::vector<RowUse> key_uses, query_uses;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const Task& task = tasks[i];
    const auto user = static_cast<int64_t>(i);
    query_uses.push_back(
        {task.query_buffer, {task.q_row, task.q_row + task.q_tokens}, task.q_position, user});
    for (const KeyRange& keys : task.keys) {
      key_uses.push_back({keys.buffer, {keys.row, keys.row + keys.tokens}, keys.position, user});
    }
  }
  Groups keys(tasks.size()), queries(tasks.size()), families(tasks.size());
  std::vector<int64_t> shifted;  // tasks
  const auto join = [&](Groups& groups, std::span<const RowUse> uses) {
    for (const RowUse& use : uses) {
      groups.join(uses[0].user, use.user);
      families.join(uses[0].user, use.user);
    }
  };
  for_each_overlap(std::move(query_uses), [&](auto uses) { join(queries, uses); });
  for_each_overlap(std::move(key_uses), [&](auto uses) {
    join(keys, uses);
    const auto shift = [](const RowUse& use) { return use.rows.begin - use.position; };
    for (const RowUse& use : uses) {
      if (shift(use) != shift(uses[0])) shifted.push_back(use.user);
    }
  });
  SharedRows shared{.shifted = std::vector<bool>(tasks.size())};
  for (size_t i = 0; i < tasks.size(); ++i) {
    const auto task = static_cast<int64_t>(i);
    shared.keys.push_back(keys.find(task));
    shared.queries.push_back(queries.find(task));
    shared.families.push_back(families.find(task));
  }
  for (const int64_t task : shifted) shared.shifted[shared.keys[task]] = true;
  return shared;
}

AccumulationOrder::AccumulationOrder(const Shape& shape, std::span<const Task> tasks,
                                     std::vector<Item> items) {
  const SharedRows shared = find_shared_rows(tasks);
  const int64_t heads = shape.num_kv_heads;
  const int64_t group = shape.num_heads / heads;
  const int64_t names = static_cast<int64_t>(tasks.size()) * heads;

  std::vector<int64_t> members(tasks.size());  // [group] number of tasks that add to the same dq
  for (const int64_t name : shared.queries) ++members[name];
  const auto name = [&](const std::vector<int64_t>& groups, const Item& item) {
    return groups[item.task] * heads + item.kv_head;
  };
  std::vector<int64_t> family_of;
  family_of.reserve(items.size());
  for (const Item& item : items) family_of.push_back(name(shared.families, item));

  std::vector<Chain*> key_chains(names), query_chains(names);
  const auto join = [&](Chain*& chain, Place& place) {
    if (chain == nullptr) {
      chains_.push_back(std::make_unique<Chain>());
      chain = chains_.back().get();
    }
    chain->places.push_back(&place);
    return Link{chain, std::ssize(chain->places) - 1};
  };
  places_ = std::make_unique<Place[]>(items.size());
  items_.reserve(items.size());
  for (const int64_t i : order_by_rest(items, family_of, names)) {
    const Item& item = items[i];
    Place& place = places_[items_.size()];
    items_.push_back(item);
    place.keys = join(key_chains[name(shared.keys, item)], place);
    place.keys.chain->shifted = shared.shifted[shared.keys[item.task]];
    if (members[shared.queries[item.task]] == 1) continue;
    place.queries = join(query_chains[name(shared.queries, item)], place);
    const int64_t first_row = tasks[item.task].q_row * group;
    place.query_rows = {first_row + item.row_begin, first_row + item.row_end};
  }
}

AccumulationGate AccumulationOrder::gate(int64_t index) {
  Place& place = places_[index];
  AccumulationGate gate{.state = &place};
  if (place.keys.index > 0 || place.queries.index > 0) gate.wait = &AccumulationOrder::wait;
  if (place.keys.index + 1 < std::ssize(place.keys.chain->places))
    gate.done = &AccumulationOrder::done;
  return gate;
}

void AccumulationOrder::finish(int64_t index) { done(&places_[index], AccumulationGate::kAll); }

void AccumulationOrder::done(void* state, int64_t position) {
  // The engine's positions ascend, and finish() comes last.
  static_cast<Place*>(state)->progress.store(position, std::memory_order_release);
}

void AccumulationOrder::wait(void* state, int64_t position) {
  const Place& place = *static_cast<Place*>(state);
  if (position != AccumulationGate::kAll) {
    const int64_t needed = place.keys.chain->shifted ? AccumulationGate::kAll : position;
    wait_for(place.keys, needed, [](const Place&) { return true; });
  } else if (place.queries.chain != nullptr) {
    wait_for(place.queries, AccumulationGate::kAll, [&](const Place& other) {
      return !intersect(place.query_rows, other.query_rows).empty();
    });
  }
}

/// Until all `concerned` places before the link's have come to `position`. Each is asked itself:
/// that a predecessor came so far says nothing of those before it, for it may have had nothing to
/// add.
template <typename Concerned>
void AccumulationOrder::wait_for(const Link& link, int64_t position, const Concerned& concerned) {
  Chain& chain = *link.chain;
  const int64_t first = chain.ended.load(std::memory_order_acquire);
  int64_t ended = first;
  for (int64_t i = first; i < link.index; ++i) {
    const Place& place = *chain.places[i];
    int64_t progress = place.progress.load(std::memory_order_acquire);
    for (int looks = 0; progress < position && concerned(place); ++looks) {
      if (looks < kLooksBeforeYield) {
        pause_briefly();
      } else {
        std::this_thread::yield();
      }
      progress = place.progress.load(std::memory_order_acquire);
    }
    if (progress == AccumulationGate::kAll && ended == i) ended = i + 1;
  }
  // Others may store less at the same time: then they look at a few places again. Who reads it has
  // seen what this thread has seen.
  if (ended > first) chain.ended.store(ended, std::memory_order_release);
}

}  // namespace distca::kernels
