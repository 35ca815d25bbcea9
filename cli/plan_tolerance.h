#pragma once
// `distca plan --tolerance auto`: which tolerance training would choose, and what it weighed.

#include <string>

#include "cli/plan_arguments.h"
#include "distca/plan/choose_tolerance.h"

namespace distca::cli {

/// With the speeds of --profile, else the stated ones, on the links of the cluster. A model whose
/// sizes are not given: hidden size = heads x head dimension, an MLP 3.5 times as wide (Llama 3).
ToleranceChoice chosen_tolerance(const PlanArguments& arguments, const PlanRequest& request);

/// A line a plan that was weighed. `seconds`: what choosing took.
std::string weighed_table(const ToleranceChoice& choice, const std::string& overlap,
                          double seconds);

}  // namespace distca::cli
