#include <string>

#include "distca/plan/exchange.h"
#include "distca/plan/plan.h"
#include "distca/plan/scheduler.h"
#include "distca/plan/validate.h"
#include "tests/fuzz/fuzzing.h"
#include "tests/fuzz/targets.h"

namespace distca::fuzz {
namespace {

/// Validates a plan, as is done with somebody else's before it is used, and then uses it. Throws
/// Error(kPlan) if it is not valid.
bool check(const Plan& plan) {
  const auto violations = validate(plan, checks_of(find_scheduler(plan.options.scheduler)));
  DISTCA_THROW_IF(!violations.empty(), ErrorKind::kPlan, "{}", violations.front());
  const PlanIndex index(plan);
  for (size_t rank = 0; rank < plan.load.size(); ++rank) index.exchange(static_cast<int>(rank));
  return true;
}

}  // namespace

bool plan(std::span<const uint8_t> bytes) {
  const auto read = unless_refused([&] { return plan_from_json(as_text(bytes)); });
  if (!read) return false;
  const std::string json = plan_to_json(*read);
  const Plan again = plan_from_json(json);
  DISTCA_CHECK(again == *read && plan_to_json(again) == json,
               "a plan that was read, written and read again is another one");
  unless_refused([&] { return check(*read); });  // a plan that can be read need not be valid
  return true;
}

}  // namespace distca::fuzz
