#include "distca/program/schedule.h"

#include <algorithm>

#include "distca/base/error.h"
#include "distca/program/program_builder.h"

namespace distca {
namespace {

struct BuilderOf {
  Schedule schedule;
  Program (*build)(const ProgramRequest& request);
};
constexpr BuilderOf kBuilders[] = {
    {Schedule::kBlocking, build_blocking},
    {Schedule::kOverlap, build_overlap},
    {Schedule::kPingPong, build_ping_pong},
};

}  // namespace

Schedule schedule_of(std::string_view name) {
  for (const ScheduleName& known : kSchedules) {
    if (known.name == name) return known.schedule;
  }
  DISTCA_CHECK(false, "no schedule {}", name);
}

std::string_view schedule_name(Schedule schedule) {
  return std::ranges::find(kSchedules, schedule, &ScheduleName::schedule)->name;
}

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const ScheduleName& known : kSchedules) names.emplace_back(known.name);
  return names;
}

Hiding hiding_of(Schedule schedule, int64_t nano_batches) {
  switch (schedule) {
    case Schedule::kBlocking:
      return Hiding::kNothing;
    case Schedule::kOverlap:
      return Hiding::kHomeTasks;
    case Schedule::kPingPong:
      break;
  }
  return nano_batches > 1 ? Hiding::kOtherNanoBatch : Hiding::kHomeTasks;
}

Program build_program(const ProgramRequest& request) {
  for (const BuilderOf& builder : kBuilders) {
    if (builder.schedule == request.schedule) return builder.build(request);
  }
  DISTCA_CHECK(false, "schedule {} has no builder", static_cast<int>(request.schedule));
}

}  // namespace distca
