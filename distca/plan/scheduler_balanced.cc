#include "distca/plan/scheduler_balanced.h"

#include "distca/plan/scheduler_balanced_moves.h"

namespace distca {

std::vector<Task> schedule_balanced(const PlanRequest& request, const Layout& layout) {
  Mover mover(request, layout);
  mover.balance();
  while (mover.shed_one_block()) {
  }
  return mover.state().tasks();
}

}  // namespace distca
