#pragma once
// The validator's second half: load, bytes and memory of a plan whose layout and tasks are right,
// recounted in another way than by accounting.h. Any thread.

#include "distca/plan/validate.h"
#include "distca/plan/validate_parts.h"

namespace distca {

/// Reports what the plan claims and is not so, a cap that is exceeded, a server without capacity
/// that has load, and a load above the tolerance asked for. `held`: [document] ascending position,
/// every token once. `tasks`: [document] ascending server.
void check_load(const Plan& plan, const ValidateOptions& options, const ByDocument<Held>& held,
                const ByDocument<const Task*>& tasks, Violations& violations);

}  // namespace distca
