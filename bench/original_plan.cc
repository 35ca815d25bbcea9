#include "bench/original_plan.h"

#include "distca/plan/validate.h"

namespace distca::bench {

Plan original_plan(const PlanRequest& request) {
  PlanRequest original = request;
  original.options = {.scheduler = kOriginal, .tolerance_ppm = request.options.tolerance_ppm};
  return make_plan(original);
}

std::vector<std::string> original_violations(const Plan& plan) {
  constexpr size_t kAll = 1'000'000;
  std::vector<std::string> violations = validate(plan, {.max_violations = kAll});
  std::erase_if(violations, [](const std::string& line) {
    return line.find(" is cut at ") != std::string::npos;
  });
  return violations;
}

}  // namespace distca::bench
