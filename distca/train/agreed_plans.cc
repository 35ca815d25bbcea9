#include "distca/train/agreed_plans.h"

#include "distca/train/same_plan.h"

namespace distca {

std::optional<PlannedBatch> AgreedPlans::next(ProgramRequest::Kind kind, Speeds speeds,
                                              int stop_signal) {
  std::optional<PlannedBatch> planned;
  try {
    if (!failure_) planned = ahead_->next(std::move(speeds));
  } catch (const Error& error) {
    failure_ = error;
  }
  PlanWord word{.stop_signal = stop_signal};
  if (planned) {
    DISTCA_CHECK(planned->kind == kind, "what was planned is of the other kind");
    word = {planned->figures.hash, planned->bad_tokens, planned->targets_left_out, stop_signal};
  }
  word = compare_plans(comm_, word, &failure_);
  stop_signal_ = static_cast<int>(word.stop_signal);
  if (failure_ || stop_signal_ != 0) return {};
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
