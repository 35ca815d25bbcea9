#include "distca/plan/key_sub_ranges.h"

#include <cstdlib>
#include "distca/plan/key_sub_ranges_give.h"
#include "distca/plan/key_sub_ranges_groups.h"

namespace distca {

std::vector<Task> schedule_with_key_sub_ranges(const PlanRequest& request, const Layout& layout) {
  Assignment state(request, layout);
  const char* e = getenv("ORDER");
  const std::string o = e ? e : "dg";
  for (char c : o) {
    if (c == 'd') divide_keys(state, request);
    if (c == 'g') give_rectangles(state, request);
  }
  return state.tasks();
}

}  // namespace distca
