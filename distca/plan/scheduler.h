#pragma once
// How plans are made: a layout, then a scheduler, each found by name in one table (scheduler.cc).
// To add one: one file with the function, one line in the table. Functions are pure and
// deterministic (DESIGN, data model); any thread.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "distca/plan/plan.h"

namespace distca {

/// Places every token of the nano-batch. Throws Error(kPlan) when a cap cannot be met.
using LayoutFunction = Layout (*)(const PlanRequest& request);
/// Tasks, in any order, that compute every (query, key) pair the documents' masks allow exactly
/// once.
using ScheduleFunction = std::vector<Task> (*)(const PlanRequest& request, const Layout& layout);

struct LayoutEntry {
  std::string_view name;
  std::string_view summary;  // one line, for --help
  LayoutFunction make;
};
struct SchedulerEntry {
  std::string_view name;
  std::string_view summary;  // one line, for --help
  ScheduleFunction schedule;
};

std::span<const LayoutEntry> layouts();
std::span<const SchedulerEntry> schedulers();

/// Both throw Error(kPlan) for an unknown name, with the nearest known one and the list.
const LayoutEntry& find_layout(std::string_view name);
const SchedulerEntry& find_scheduler(std::string_view name);

}  // namespace distca
