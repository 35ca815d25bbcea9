#include "distca/plan/balanced/split_kv.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

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
constexpr int kCaps = 4;          // on traffic, each half as much again, tried with options.spread

int64_t busiest_traffic(const Assignment& state) {
  int64_t most = 1;
  for (int rank = 0; rank < state.num_servers(); ++rank) {
    most = std::max({most, state.send_bytes(rank), state.receive_bytes(rank)});
  }
  return most;
}

/// `home`: load bounds of the tasks at home. Rectangles that run slower raise the load of all; more
/// than kSlower is too much.
Figures figures(const PlanRequest& request, const Assignment& state,
                const std::vector<int64_t>& home) {
  const std::vector<int64_t> bounds = load_bounds(request, state.total_load());
  Figures result{overrun(state, request.cluster), 0, 0};
  for (int rank = 0; rank < state.num_servers(); ++rank) {
    const int64_t bound = std::min(bounds[rank], home[rank] + home[rank] / kSlower);
    result[1] += std::max<int64_t>(0, state.load(rank) - bound);
  }
  result[2] = request.options.spread ? busiest_traffic(state) : state.price();
  return result;
}

/// The assignment of a layout's tasks, to count their loads and bytes.
Assignment assigned(const PlanRequest& request, const Layout& layout,
                    const std::vector<Task>& tasks) {
  Assignment state(request, layout);
  for (int server = 0; server < state.num_servers(); ++server) {
    while (!state.shards(server).empty()) state.shrink(server, state.shards(server).size() - 1, {});
  }
  for (const Task& task : tasks) {
    state.homes().for_each_part(task.document, task.q, [&](const HomeSegment& home, const Range&) {
      const auto index = static_cast<int32_t>(&home - state.homes().all().data());
      state.add(task.server, state.with_keys(task.document, task.q, task.kv, index));
    });
  }
  return state;
}

/// The state after rectangles are given away until loads are within their bounds.
Assignment given(const PlanRequest& request, Assignment state) {
  give_rectangles(state, request);
  shed_rectangles(state, request);
  return state;
}

/// The best of `cheapest`, which is a result without options.spread, and of results of `spread`.
/// From that, rectangles are given away within a cap on what each rank sends and receives, and
/// without the cap what is then left. A low cap spares busy ranks, but they pay where it leaves
/// much. So caps rise from what the busiest rank has before, until nothing is left. All states
/// borrow `cluster`.
Assignment spread_out(const PlanRequest& request, Assignment cheapest, const Assignment& spread,
                      Cluster& cluster, const std::vector<int64_t>& home) {
  std::optional<Assignment> best(std::move(cheapest));
  Figures least = figures(request, *best, home);
  int64_t cap = busiest_traffic(spread);
  for (int tried = 0; tried < kCaps; ++tried, cap += cap / 2) {
    Assignment within_cap = spread;
    PlanRequest tight = request;
    for (int64_t* most : {&tight.cluster.max_send_bytes, &tight.cluster.max_receive_bytes})
      *most = *most > 0 ? std::min(*most, cap) : cap;
    cluster = tight.cluster;
    give_rectangles(within_cap, tight);
    cluster = request.cluster;
    const bool is_all = figures(request, within_cap, home)[1] == 0;
    Assignment state = given(request, std::move(within_cap));
    const Figures now = figures(request, state, home);
    if (now < least) {
      best.emplace(std::move(state));
      least = now;
    }
    if (is_all) break;
  }
  return std::move(*best);
}

}  // namespace

std::vector<Task> schedule_with_split_kv(const PlanRequest& request, const Layout& layout) {
  PlanRequest own = request;  // states borrow its cluster
  const Assignment at_home(own, layout);
  const std::vector<int64_t> home = load_bounds(request, at_home.total_load());
  PlanRequest alone = request;
  alone.options.spread = false;
  Assignment cheapest = given(alone, divide_keys(at_home, alone));
  const Assignment state = request.options.spread
                               ? spread_out(request, std::move(cheapest),
                                            divide_keys(at_home, request), own.cluster, home)
                               : std::move(cheapest);
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
