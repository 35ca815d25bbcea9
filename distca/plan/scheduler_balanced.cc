#include "distca/plan/scheduler_balanced.h"

#include "distca/plan/scheduler_balanced_caps.h"
#include "distca/plan/scheduler_balanced_improve.h"
#include "distca/plan/scheduler_balanced_moves.h"

namespace distca {

/// Some 50 us each; a hundred more gain less than 1 % of the bytes.
constexpr int kRounds = 96;

std::vector<Task> schedule_balanced(const PlanRequest& request, const Layout& layout) {
  Mover mover(request, layout);
  mover.balance();
  improve(mover, kRounds);
  respect_caps(mover, request.cluster);
  mover.balance();  // what caps have moved, within the caps
  while (mover.shed_one_block()) {
  }
  return mover.state().tasks();
}

}  // namespace distca
