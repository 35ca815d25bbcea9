#pragma once
// Scheduler `local`: every query is computed where it lives, which is plain packing. Any thread may
// call it.

#include "distca/plan/scheduler.h"

namespace distca {

/// Makes one task for each segment, on the worker that holds it. Keys that live elsewhere are
/// fetched. Capacity and tolerance are ignored.
std::vector<Task> schedule_local(const PlanRequest& request, const Layout& layout);

}  // namespace distca
