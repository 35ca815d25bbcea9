#pragma once
#include <vector>

#include "distca/plan/plan.h"

namespace distca {

std::vector<Task> schedule_with_key_sub_ranges(const PlanRequest& request, const Layout& layout);

}  // namespace distca
