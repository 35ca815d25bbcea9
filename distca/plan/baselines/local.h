#pragma once
// Scheduler `local`: plain packing. Any thread.

#include "distca/plan/scheduler.h"

namespace distca {

/// One task a segment, on the worker that holds it; keys that live elsewhere are fetched. Ignores
/// capacity and tolerance.
std::vector<Task> schedule_local(const PlanRequest& request, const Layout& layout);

}  // namespace distca
