#include "distca/plan/key_sub_ranges.h"

#include <algorithm>
#include <array>

#include "distca/plan/accounting.h"
#include "distca/plan/key_sub_ranges_give.h"
#include "distca/plan/key_sub_ranges_groups.h"
#include "distca/plan/scheduler_balanced.h"
#include "distca/plan/scheduler_balanced_moves.h"

namespace distca {
namespace {

/// Lower is better, the first figure first: bytes above caps, load above bounds, bytes.
using Figures = std::array<int64_t, 3>;

/// One part in so many is the most that improving tasks with all keys gains on a first balance.
constexpr int64_t kBestGain = 8;

int64_t above(int64_t value, int64_t cap) {
  return cap > 0 ? std::max<int64_t>(0, value - cap) : 0;
}

Figures figures(const PlanRequest& request, const Layout& layout, std::vector<Task> tasks,
                const std::vector<int64_t>& bounds) {
  const Cluster& cluster = request.cluster;
  const Plan plan{.nano_batch = request.nano_batch,
                  .cluster = cluster,
                  .shape = request.shape,
                  .options = request.options,
                  .layout = layout,
                  .tasks = std::move(tasks),
                  .load = {}};
  Figures result{};
  const std::vector<ServerLoad> loads = account(plan, request.profile.get());
  for (size_t rank = 0; rank < loads.size(); ++rank) {
    const ServerLoad& load = loads[rank];
    result[0] += above(load.send_bytes, cluster.max_send_bytes) +
                 above(load.receive_bytes, cluster.max_receive_bytes) +
                 above(load.memory_bytes, cluster.max_memory_bytes);
    const int64_t price = request.profile ? load.time_ns : load.pairs;
    result[1] += std::max<int64_t>(0, price - bounds[rank]);
    const int64_t busy = std::max(load.send_bytes, load.receive_bytes);
    result[2] = request.options.spread ? std::max(result[2], busy)
                                       : result[2] + load.receive_bytes + load.o_send_bytes;
  }
  return result;
}

/// No rank may send or receive more than the busiest one does.
void cap_traffic(const Assignment& state, Cluster& cluster) {
  int64_t most = 1;
  for (int rank = 0; rank < state.num_servers(); ++rank) {
    most = std::max({most, state.send_bytes(rank), state.receive_bytes(rank)});
  }
  for (int64_t* cap : {&cluster.max_send_bytes, &cluster.max_receive_bytes}) {
    *cap = *cap > 0 ? std::min(*cap, most) : most;
  }
}

}  // namespace

std::vector<Task> schedule_with_key_sub_ranges(const PlanRequest& request, const Layout& layout) {
  PlanRequest capped = request;  // the state borrows its cluster
  Assignment state(capped, layout);
  const std::vector<int64_t> bounds = load_bounds(state, request);
  divide_keys(state, request);
  if (request.options.spread) {
    cap_traffic(state, capped.cluster);
    give_rectangles(state, capped);
    capped.cluster = request.cluster;  // the load bounds may need more than that
  }
  give_rectangles(state, request);
  shed_rectangles(state, request);
  std::vector<Task> tasks = state.tasks();
  const Figures ours = figures(request, layout, tasks, bounds);

  PlanRequest all_keys = request;
  all_keys.options.key_sub_ranges = false;
  all_keys.options.spread = false;
  Mover whole(all_keys, layout);
  whole.balance();
  const Figures theirs = figures(request, layout, whole.state().tasks(), bounds);
  if (ours[0] == 0 && ours[1] == 0 && ours[2] < theirs[2] - theirs[2] / kBestGain) return tasks;
  std::vector<Task> best = schedule_balanced(all_keys, layout);
  return ours < figures(request, layout, best, bounds) ? tasks : best;
}

}  // namespace distca
