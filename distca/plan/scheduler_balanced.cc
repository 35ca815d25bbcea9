#include "distca/plan/scheduler_balanced.h"

#include "distca/plan/scheduler_balanced_caps.h"
#include "distca/plan/scheduler_balanced_improve.h"
#include "distca/plan/scheduler_balanced_moves.h"

namespace distca {

/// Some 50 us each; a hundred more gain less than 1 % of the bytes.
constexpr int kRounds = 96;

namespace {

struct Tried {
  std::vector<Task> tasks;
  int64_t overrun = 0;
};

/// caps_first: before anything moves for even load.
Tried attempt(const PlanRequest& request, const Layout& layout, bool caps_first) {
  Mover mover(request, layout);
  if (caps_first) respect_caps(mover, request.cluster);
  mover.balance();
  improve(mover, request.cluster, kRounds);
  if (!caps_first) {
    respect_caps(mover, request.cluster);
    mover.balance();  // what caps have moved, within the caps
  }
  if (has_caps(request.cluster)) unstick(mover, request.cluster);
  while (mover.shed_one_block()) {
  }
  return {mover.state().tasks(), overrun(mover.state(), request.cluster)};
}

}  // namespace

std::vector<Task> schedule_balanced(const PlanRequest& request, const Layout& layout) {
  Tried even_first = attempt(request, layout, false);
  if (even_first.overrun == 0) return even_first.tasks;
  Tried caps_first = attempt(request, layout, true);
  return caps_first.overrun < even_first.overrun ? caps_first.tasks : even_first.tasks;
}

}  // namespace distca
