#pragma once
// The second half of the validator. It counts the load, bytes and memory of a plan whose layout and
// tasks are right, in another way than accounting.h does. Any thread may call the function.

#include "distca/plan/validate.h"
#include "distca/plan/validate_parts.h"

namespace distca {

/// Reports what the plan claims wrongly, caps that are exceeded, servers of capacity 0 that have
/// load, and loads above the tolerance that was asked for. `held` has ascending positions in each
/// document, with every token once. `tasks` has ascending servers in each document.
void check_load(const Plan& plan, const ValidateOptions& options, const ByDocument<Held>& held,
                const ByDocument<const Task*>& tasks, Violations& violations);

}  // namespace distca
