#include "distca/plan/balanced/split_kv.h"

#include <algorithm>
#include <array>

#include "distca/plan/balanced/caps.h"
#include "distca/plan/balanced/search.h"
#include "distca/plan/balanced/split_kv_steps.h"
#include "distca/plan/bounds.h"

namespace distca {
namespace {

/// Lower is better, the first figure first: bytes above caps, load above bounds, price of bytes
/// (with options.spread: bytes of the busiest rank).
using Figures = std::array<int64_t, 3>;

/// One part in so many is the most that improving tasks with all keys gains on a first balance.
constexpr int64_t kBestGain = 16;
constexpr int64_t kSlower = 512;  // one part in so many

/// `home`: load bounds of the tasks at home. Rectangles that run slower raise the load of all; more
/// than kSlower is too much.
Figures figures(const PlanRequest& request, const Assignment& state,
                const std::vector<int64_t>& home) {
  const std::vector<int64_t> bounds = load_bounds(request, state.total_load());
  Figures result{overrun(state, request.cluster), 0, 0};
  int64_t busiest = 0;
  for (int rank = 0; rank < state.num_servers(); ++rank) {
    const int64_t bound = std::min(bounds[rank], home[rank] + home[rank] / kSlower);
    result[1] += std::max<int64_t>(0, state.load(rank) - bound);
    busiest = std::max({busiest, state.send_bytes(rank), state.receive_bytes(rank)});
  }
  result[2] = request.options.spread ? busiest : state.price();
  return result;
}

/// What a layout's tasks are, to be counted.
Assignment assigned(const PlanRequest& request, const Layout& layout,
                    const std::vector<Task>& tasks) {
  Assignment state(request, layout);
  for (int server = 0; server < state.num_servers(); ++server) {
    while (!state.pieces(server).empty()) state.shrink(server, state.pieces(server).size() - 1, {});
  }
  for (const Task& task : tasks) {
    state.homes().for_each_part(task.document, task.q, [&](const HomeSegment& home, const Range&) {
      const auto index = static_cast<int32_t>(&home - state.homes().all().data());
      state.add(task.server, state.with_keys(task.document, task.q, task.kv, index));
    });
  }
  return state;
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

std::vector<Task> schedule_with_split_kv(const PlanRequest& request, const Layout& layout) {
  PlanRequest capped = request;  // the state borrows its cluster
  Assignment state(capped, layout);
  const std::vector<int64_t> home = load_bounds(request, state.total_load());
  divide_keys(state, request);
  if (request.options.spread) {
    cap_traffic(state, capped.cluster);
    give_rectangles(state, capped);
    capped.cluster = request.cluster;  // the load bounds may need more than that
  }
  give_rectangles(state, request);
  shed_rectangles(state, request);
  const Figures ours = figures(request, state, home);

  PlanRequest all_keys = request;
  all_keys.options.split_kv = false;
  all_keys.options.spread = false;
  FirstBalance whole(all_keys, layout);
  const int64_t theirs = figures(request, whole.state(), home)[2];
  if (ours[0] == 0 && ours[1] == 0 && ours[2] < theirs - theirs / kBestGain) return state.tasks();
  std::vector<Task> best = whole.finish();
  return ours < figures(request, assigned(all_keys, layout, best), home) ? state.tasks() : best;
}

}  // namespace distca
