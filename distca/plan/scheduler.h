#pragma once
// Names the layouts and schedulers that plans are made with, in one table each (scheduler.cc).
// make_plan (plan.h) first calls the function of the layout and then that of the scheduler. To add
// one, write one file with the function and one line in the table. The functions are pure and
// deterministic (DESIGN, data model); any thread may call them.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "distca/plan/plan.h"
#include "distca/plan/validate.h"

namespace distca {

/// Places every token of the nano-batch. Throws Error(kPlan) when a cap cannot be met.
using LayoutFunction = Layout (*)(const PlanRequest& request);
/// Returns tasks, in any order, that compute every (query, key) pair which the documents' masks
/// allow exactly once.
using ScheduleFunction = std::vector<Task> (*)(const PlanRequest& request, const Layout& layout);

struct LayoutEntry {
  std::string_view name;
  std::string_view summary;  // one line, for --print-config
  LayoutFunction make;
  /// False if workers may hold uneven numbers of tokens. Only a scheduler takes such a layout whose
  /// own layout is one, too.
  bool even_tokens = true;
};
struct SchedulerEntry {
  std::string_view name;
  std::string_view summary;  // one line, for --print-config
  ScheduleFunction schedule;
  std::string_view layout;         // for a request that names none
  int64_t tolerance_ppm = 50'000;  // for a request that names none
  bool only_this_layout = false;   // any other layout is refused
  bool capacities = true;          // false if queries stay at home, whatever the capacities
  bool split_kv = false;           // true if it can do split_kv and spread
};

std::span<const LayoutEntry> layouts();
std::span<const SchedulerEntry> schedulers();

/// Both know those of the lists, and some more that serve predictions of the paper's tables alone
/// (baselines/baselines.h). They throw Error(kPlan) for an unknown name. The error names the
/// nearest one of the list and all of it.
const LayoutEntry& find_layout(std::string_view name);
const SchedulerEntry& find_scheduler(std::string_view name);

/// Returns the checks that the validator has to make in a plan of this scheduler.
ValidateOptions checks_of(const SchedulerEntry& scheduler);

}  // namespace distca
