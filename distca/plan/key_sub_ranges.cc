#include "distca/plan/key_sub_ranges.h"

#include "distca/plan/key_sub_ranges_give.h"
#include "distca/plan/key_sub_ranges_tiles.h"

namespace distca {

std::vector<Task> schedule_with_key_sub_ranges(const PlanRequest& request, const Layout& layout) {
  Tiles tiles(request, layout);
  give_rectangles(tiles, {.columns = true});
  return tiles.tasks();
}

}  // namespace distca
