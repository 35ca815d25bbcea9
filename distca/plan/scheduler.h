#pragma once
// How plans are made: a layout, then a scheduler, each found by name in one table (scheduler.cc).
// To add one: one file with the function, one line in the table. Functions are pure and
// deterministic (DESIGN, data model); any thread.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "distca/plan/plan.h"
#include "distca/plan/validate.h"

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
  bool even_tokens = true;  // false: only for schedulers that trade even tokens away too
};
struct SchedulerEntry {
  std::string_view name;
  std::string_view summary;  // one line, for --help
  ScheduleFunction schedule;
  std::string_view layout;         // when the request names none
  int64_t tolerance_ppm = 50'000;  // when the request names none
  bool only_this_layout = false;   // any other one is refused
  bool even_tokens = true;         // false: a rival that trades even tokens for even load
  bool capacities = true;          // false: queries stay at home, whatever a server's capacity
  bool split_kv = false;           // knows split_kv and spread
};

std::span<const LayoutEntry> layouts();
std::span<const SchedulerEntry> schedulers();

/// Both throw Error(kPlan) for an unknown name, with the nearest known one and the list.
const LayoutEntry& find_layout(std::string_view name);
const SchedulerEntry& find_scheduler(std::string_view name);

/// What of a plan of this scheduler the validator has to check (plan/validate.h).
ValidateOptions checks_of(const SchedulerEntry& scheduler);

}  // namespace distca
