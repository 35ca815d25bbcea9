#include "distca/plan/scheduler_balanced.h"

#include "distca/plan/scheduler_balanced_caps.h"
#include "distca/plan/scheduler_balanced_moves.h"

namespace distca {

std::vector<Task> schedule_balanced(const PlanRequest& request, const Layout& layout) {
  Mover mover(request, layout);
  mover.balance();
  respect_caps(mover, request.cluster);
  mover.balance();  // what caps have moved, within the caps
  while (mover.shed_one_block()) {
  }
  return mover.state().tasks();
}

}  // namespace distca
