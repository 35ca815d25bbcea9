#include "distca/plan/scheduler.h"

#include <fmt/ranges.h>

#include "distca/base/error.h"
#include "distca/base/text.h"
#include "distca/plan/layout_sequential.h"
#include "distca/plan/scheduler_balanced.h"
#include "distca/plan/scheduler_greedy.h"
#include "distca/plan/scheduler_local.h"

namespace distca {
namespace {

constexpr LayoutEntry kLayouts[] = {
    {"sequential", "documents in order fill one worker after another", sequential_layout},
};
constexpr SchedulerEntry kSchedulers[] = {
    {.name = "balanced",
     .summary = "even load for the fewest bytes: shards where the keys are, each key once a server",
     .schedule = schedule_balanced,
     .layout = "sequential",
     .tolerance_ppm = 20'000},
    {.name = "greedy",
     .summary = "the paper's: overloaded servers give shards away, most pairs per byte first",
     .schedule = schedule_greedy,
     .layout = "sequential"},
    {.name = "local",
     .summary = "every query where it lives: plain packing",
     .schedule = schedule_local,
     .layout = "sequential"},
};

template <typename Entry>
const Entry& find(const char* what, std::span<const Entry> entries, std::string_view name) {
  std::vector<std::string> known;
  for (const Entry& entry : entries) {
    if (entry.name == name) return entry;
    known.emplace_back(entry.name);
  }
  const auto nearest = nearest_word(name, known);
  throw Error(ErrorKind::kPlan, "unknown {} '{}'{}: known are {}", what, name,
              nearest ? fmt::format(", did you mean '{}'?", *nearest) : "", fmt::join(known, ", "));
}

}  // namespace

std::span<const LayoutEntry> layouts() { return kLayouts; }
std::span<const SchedulerEntry> schedulers() { return kSchedulers; }
const LayoutEntry& find_layout(std::string_view name) { return find("layout", layouts(), name); }
const SchedulerEntry& find_scheduler(std::string_view name) {
  return find("scheduler", schedulers(), name);
}

ValidateOptions checks_of(const SchedulerEntry& scheduler) {
  ValidateOptions options;
  options.cuts = scheduler.cuts;
  options.even_tokens = scheduler.even_tokens;
  return options;
}

}  // namespace distca
