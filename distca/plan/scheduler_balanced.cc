#include "distca/plan/scheduler_balanced.h"

#include <utility>

#include "distca/plan/assignment.h"
#include "distca/plan/scheduler_balanced_caps.h"
#include "distca/plan/scheduler_balanced_improve.h"
#include "distca/plan/scheduler_balanced_moves.h"

namespace distca {

/// Some 50 us each; a hundred more gain less than 1 % of the bytes.
constexpr int kRounds = 96;

namespace {

struct Tried {
  std::vector<Task> tasks;
  int64_t overrun = 0;  // of the caps
  int64_t price = 0;    // of its bytes
  double highest = 0;   // load over share
};

double highest_load(const Assignment& state, const Cluster& cluster) {
  std::vector<int64_t> load;
  for (int server = 0; server < state.num_servers(); ++server) load.push_back(state.load(server));
  return max_over_mean(cluster, load);
}

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
  const Assignment& state = mover.state();
  return {state.tasks(), overrun(state, request.cluster), state.price(),
          highest_load(state, request.cluster)};
}

/// With few blocks the tolerance may be out of reach, and moves made on the way to it cost bytes
/// for nothing. So once more, with what was reached as the goal.
Tried cheaper_if_out_of_reach(const PlanRequest& request, const Layout& layout, Tried found) {
  constexpr double kMillion = 1e6;
  const double reached_ppm = (found.highest - 1) * kMillion + 1;
  if (reached_ppm <= static_cast<double>(request.options.tolerance_ppm) + 1 ||
      reached_ppm > kMillion * kMillion) {
    return found;
  }
  PlanRequest again = request;
  again.options.tolerance_ppm = static_cast<int64_t>(reached_ppm);
  Tried other = attempt(again, layout, false);
  const bool better =
      other.overrun == 0 && other.highest <= found.highest && other.price < found.price;
  return better ? other : found;
}

}  // namespace

std::vector<Task> schedule_balanced(const PlanRequest& request, const Layout& layout) {
  Tried even_first = attempt(request, layout, false);
  if (even_first.overrun == 0) {
    return cheaper_if_out_of_reach(request, layout, std::move(even_first)).tasks;
  }
  Tried caps_first = attempt(request, layout, true);
  return caps_first.overrun < even_first.overrun ? caps_first.tasks : even_first.tasks;
}

}  // namespace distca
