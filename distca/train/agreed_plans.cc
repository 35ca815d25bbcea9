#include "distca/train/agreed_plans.h"

#include "distca/train/same_plan.h"

namespace distca {

std::optional<PlannedBatch> AgreedPlans::next(ProgramRequest::Kind kind, Speeds speeds) {
  std::optional<PlannedBatch> planned;
  try {
    if (!failure_) planned = ahead_->next(std::move(speeds));
  } catch (const Error& error) {
    failure_ = error;
  }
  PlanWord word;
  if (planned) {
    DISTCA_CHECK(planned->kind == kind, "what was planned is of the other kind");
    word = {planned->figures.hash, planned->bad_tokens, planned->targets_left_out};
  }
  word = compare_plans(comm_, word, &failure_);
  if (failure_) return {};
  planned->figures.bad_tokens = word.bad_tokens;
  planned->figures.targets -= word.targets_left_out;
  return planned;
}

void AgreedPlans::restart(const std::function<void()>& change, Speeds speeds) {
  ahead_.reset();  // waits for its thread
  change();
  ahead_.emplace(plan_next_, std::move(speeds));
}

}  // namespace distca
