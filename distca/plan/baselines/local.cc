#include "distca/plan/baselines/baselines.h"

namespace distca {

std::vector<Task> schedule_local(const PlanRequest& request, const Layout& layout) {
  std::vector<Task> tasks;
  for (int worker = 0; worker < layout.num_workers(); ++worker) {
    for (const Segment& segment : layout.workers[worker]) {
      tasks.push_back({.document = segment.document,
                       .q = segment.tokens,
                       .kv = request.shape.mask.keys(segment.tokens),
                       .server = worker});
    }
  }
  return tasks;
}

}  // namespace distca
