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
Layout wlb_cp(const PlanRequest& request) {
  return wlb_cp_layout(request, kMostOfGroup);
}

constexpr LayoutEntry wlb_cp_entry(std::string_view name, std::string_view summary,
                                   LayoutFunction make) {
  return {.name = name, .summary = summary, .make = make, .even_tokens = false};
}

constexpr SchedulerEntry wlb_cp_scheduler(std::string_view name, std::string_view summary) {
  return {.name = name,
          .summary = summary,
          .schedule = schedule_local,
          .layout = name,
          .only_this_layout = true,
          .even_tokens = false,
          .capacities = false};
}

constexpr LayoutEntry kLayouts[] = {
    {"balanced", "homes where most queries can stay and keys travel least", balanced_layout},
    {"sequential", "documents in order fill one worker after another", sequential_layout},
    {.name = "wlb",
     .summary = "whole documents, even work by x^2 + x: variable-length packing",
     .make = wlb_layout,
     .even_tokens = false},
    {.name = "karmarkar-karp",
     .summary = "whole documents, even work by the largest differencing method",
     .make = karmarkar_karp_layout,
     .even_tokens = false},
    {.name = "per-document-cp",
     .summary = "every document over all workers, head and tail shards",
     .make = per_document_layout,
     .even_tokens = false},
    wlb_cp_entry("wlb-cp2", "wlb over groups of 2 workers, each document cut over its group",
                 wlb_cp<2>),
    wlb_cp_entry("wlb-cp4", "groups of 4", wlb_cp<4>),
    wlb_cp_entry("wlb-cp8", "groups of 8", wlb_cp<8>),
    wlb_cp_entry("wlb-cp16", "groups of 16", wlb_cp<16>),
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
    {.name = "per-document-cp",
     .summary = "context parallelism: every document over all workers, tasks stay, keys travel",
     .schedule = schedule_local,
     .layout = "per-document-cp",
     .only_this_layout = true,
     .even_tokens = false,
     .capacities = false},
    {.name = "wlb",
     .summary = "whole documents packed for even work, tokens uneven; nothing travels",
     .schedule = schedule_local,
     .layout = "wlb",
     .only_this_layout = true,
     .even_tokens = false,
     .capacities = false},
    {.name = "karmarkar-karp",
     .summary = "whole samples for even work, tokens uneven, as frameworks balance replicas",
     .schedule = schedule_local,
     .layout = "karmarkar-karp",
     .only_this_layout = true,
     .even_tokens = false,
     .capacities = false},
    wlb_cp_scheduler("wlb-cp2",
                     "data x context parallelism: tasks stay, keys travel in groups of 2"),
    wlb_cp_scheduler("wlb-cp4", "groups of 4"),
    wlb_cp_scheduler("wlb-cp8", "groups of 8"),
    wlb_cp_scheduler("wlb-cp16", "groups of 16"),
};

// These are in no list, so no configuration may name them (baselines.h).
constexpr LayoutEntry kUnlistedLayouts[] = {
    {"sequential-exact", "documents in order, cut at any token", exact_layout},
    {.name = "given-groups",
     .summary = "groups of workers that the nano-batch says",
     .make = given_groups_layout,
     .even_tokens = false},
};
constexpr SchedulerEntry kUnlistedSchedulers[] = {
    {.name = "greedy-original",
     .summary = "the released planner of the paper",
     .schedule = schedule_original,
     .layout = "sequential-exact",
     .tolerance_ppm = 50'000,
     .only_this_layout = true},
    {.name = "all-gather",
     .summary = "tasks stay, all keys of a document travel to all who hold a part of it",
     .schedule = schedule_all_gather,
     .layout = "per-document-cp",
     .even_tokens = false,
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
  return {.capacities = scheduler.capacities, .even_tokens = scheduler.even_tokens};
}

}  // namespace distca
