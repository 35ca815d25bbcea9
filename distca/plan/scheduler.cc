#include "distca/plan/scheduler.h"

#include <fmt/ranges.h>

#include "distca/base/error.h"
#include "distca/base/text.h"
#include "distca/plan/balanced/balanced_layout.h"
#include "distca/plan/balanced/search.h"
#include "distca/plan/balanced/split_kv.h"
#include "distca/plan/baselines/baselines.h"
#include "distca/plan/layout_sequential.h"

namespace distca {
namespace {

std::vector<Task> balanced_tasks(const PlanRequest& request, const Layout& layout) {
  return request.options.split_kv ? schedule_with_split_kv(request, layout)
                                  : schedule_balanced(request, layout);
}

template <int kMostOfGroup>
Layout wlb(const PlanRequest& request) {
  return wlb_layout(request, kMostOfGroup);
}

constexpr LayoutEntry uneven(std::string_view name, std::string_view summary, LayoutFunction make) {
  return {.name = name, .summary = summary, .make = make, .even_tokens = false};
}

/// A scheduler for the layout of the same name, in which every query stays at home.
constexpr SchedulerEntry staying(std::string_view name, std::string_view summary) {
  return {.name = name,
          .summary = summary,
          .schedule = schedule_local,
          .layout = name,
          .only_this_layout = true,
          .capacities = false};
}

constexpr LayoutEntry kLayouts[] = {
    {"balanced", "homes where most queries can stay and keys travel least", balanced_layout},
    {"sequential", "documents in order fill one worker after another", sequential_layout},
    uneven("wlb", "whole documents, even work by x^2 + x: variable-length packing", wlb<1>),
    uneven("karmarkar-karp", "whole documents, even work by the largest differencing method",
           karmarkar_karp_layout),
    uneven("per-document-cp", "every document over all workers, head and tail shards",
           per_document_layout),
    uneven("wlb-cp2", "wlb over groups of 2 workers, each document cut over its group", wlb<2>),
    uneven("wlb-cp4", "groups of 4", wlb<4>),
    uneven("wlb-cp8", "groups of 8", wlb<8>),
    uneven("wlb-cp16", "groups of 16", wlb<16>),
};
constexpr SchedulerEntry kSchedulers[] = {
    {.name = "balanced",
     .summary = "even load for the fewest bytes: shards where the keys are, each key once a server",
     .schedule = balanced_tasks,
     .layout = "balanced",
     .tolerance_ppm = 20'000,
     .split_kv = true},
    {.name = "greedy",
     .summary = "the paper's: overloaded servers give shards away, most pairs per byte first",
     .schedule = schedule_greedy,
     .layout = "sequential"},
    {.name = "local",
     .summary = "every query where it lives: plain packing",
     .schedule = schedule_local,
     .layout = "sequential",
     .capacities = false},
    staying("per-document-cp",
            "context parallelism: every document over all workers, tasks stay, keys travel"),
    staying("wlb", "whole documents packed for even work, tokens uneven; nothing travels"),
    staying("karmarkar-karp",
            "whole samples for even work, tokens uneven, as frameworks balance replicas"),
    staying("wlb-cp2", "data x context parallelism: tasks stay, keys travel in groups of 2"),
    staying("wlb-cp4", "groups of 4"),
    staying("wlb-cp8", "groups of 8"),
    staying("wlb-cp16", "groups of 16"),
};

// These are in no list, so no configuration may name them (baselines.h).
constexpr LayoutEntry kUnlistedLayouts[] = {
    {"sequential-exact", "documents in order, cut at any token", exact_layout},
    uneven("given-groups", "groups of workers that the nano-batch says", given_groups_layout),
};
constexpr SchedulerEntry kUnlistedSchedulers[] = {
    {.name = "greedy-original",
     .summary = "the released planner of the paper",
     .schedule = schedule_original,
     .layout = "sequential-exact",
     .only_this_layout = true},
    {.name = "all-gather",
     .summary = "tasks stay, all keys of a document travel to all who hold a part of it",
     .schedule = schedule_all_gather,
     .layout = "per-document-cp",
     .capacities = false},
};

template <typename Entry>
const Entry& find(const char* what, std::span<const Entry> entries, std::span<const Entry> unlisted,
                  std::string_view name) {
  std::vector<std::string> known;
  for (const Entry& entry : entries) {
    if (entry.name == name) return entry;
    known.emplace_back(entry.name);
  }
  for (const Entry& entry : unlisted) {
    if (entry.name == name) return entry;
  }
  const auto nearest = nearest_word(name, known);
  throw Error(ErrorKind::kPlan, "unknown {} \"{}\": must be one of {}{}", what, name,
              fmt::join(known, ", "), nearest ? fmt::format("; did you mean {}?", *nearest) : "");
}

}  // namespace

std::span<const LayoutEntry> layouts() { return kLayouts; }
std::span<const SchedulerEntry> schedulers() { return kSchedulers; }
const LayoutEntry& find_layout(std::string_view name) {
  return find<LayoutEntry>("layout", kLayouts, kUnlistedLayouts, name);
}
const SchedulerEntry& find_scheduler(std::string_view name) {
  return find<SchedulerEntry>("scheduler", kSchedulers, kUnlistedSchedulers, name);
}

ValidateOptions checks_of(const SchedulerEntry& scheduler) {
  return {.capacities = scheduler.capacities,
          .even_tokens = find_layout(scheduler.layout).even_tokens};
}

}  // namespace distca
