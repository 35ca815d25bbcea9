#include "distca/plan/key_sub_ranges.h"

#include "distca/plan/key_sub_ranges_give.h"

namespace distca {

std::vector<Task> schedule_with_key_sub_ranges(const PlanRequest& request, const Layout& layout) {
  Assignment state(request, layout);
  give_rectangles(state, request);
  return state.tasks();
}

}  // namespace distca
