#include "distca/plan/balanced/search.h"

#include <algorithm>
#include <utility>

#include "distca/plan/balanced/caps.h"
#include "distca/plan/balanced/improve.h"

namespace distca {

/// Servers that no move brings below their bounds: every round looks at all of them again.
constexpr int kMostAbove = 8;
/// Other goals are for few blocks: there a plan takes microseconds.
constexpr int kFewServers = 32;

namespace {

struct Tried {
  std::vector<Task> tasks;
  int64_t overrun = 0;  // bytes above the caps
  int64_t price = 0;    // price of its bytes
  double highest = 0;   // load over share
};

int servers_above(const Mover& mover) {
  int count = 0;
  for (int server = 0; server < mover.state().num_servers(); ++server) {
    count += mover.excess(server) > 0 ? 1 : 0;
  }
  return count;
}

/// The tasks of a balanced state after improvement. With `caps_first`, the caps were respected
/// before anything moved for even load.
Tried improved(const PlanRequest& request, const Assignment& state, Mover& mover, bool caps_first) {
  if (servers_above(mover) <= kMostAbove) improve(mover, request.cluster, request.rounds);
  if (!caps_first) {
    respect_caps(mover, request.cluster);
    mover.balance();  // evens out the load that caps have moved, within the caps
  }
  if (has_caps(request.cluster)) unstick(mover, request.cluster);
  mover.shed_blocks();
  return {state.tasks(), overrun(state, request.cluster), state.price(),
          max_over_mean(request.cluster, state.loads())};
}

Tried attempt(const PlanRequest& request, const Layout& layout, bool caps_first) {
  Assignment state(request, layout);
  Mover mover(request, state);
  if (caps_first) respect_caps(mover, request.cluster);
  mover.balance();
  return improved(request, state, mover, caps_first);
}

constexpr double kMillion = 1e6;

/// Within the tolerance, then the more even one; between equals the one that moves fewer bytes.
bool better(const Tried& a, const Tried& b, double allowed) {
  const double even_a = std::max(a.highest, allowed), even_b = std::max(b.highest, allowed);
  return even_a != even_b ? even_a < even_b : a.price < b.price;
}

/// With few blocks the search may miss the tolerance. Another goal leads it elsewhere: tighter ones
/// may end more evenly, and with what was reached as the goal no move is made for nothing.
Tried with_other_goals(const PlanRequest& request, const Layout& layout, Tried best) {
  const double bound = request.options.most_over_share() + 1e-9;
  PlanRequest other = request;
  const auto attempt_at = [&](int64_t tolerance_ppm) {
    other.options.tolerance_ppm = tolerance_ppm;
    Tried found = attempt(other, layout, false);
    if (found.overrun == 0 && better(found, best, bound)) best = std::move(found);
  };
  const int64_t asked = request.options.tolerance_ppm.value();
  for (const int64_t tighter : {asked / 2, asked / 4, int64_t{0}}) {
    if (best.highest > bound) attempt_at(tighter);
  }
  const double reached_ppm = (best.highest - 1) * kMillion + 1;
  if (best.highest > bound && reached_ppm < kMillion * kMillion) {
    attempt_at(static_cast<int64_t>(reached_ppm));
  }
  return best;
}

}  // namespace

FirstBalance::FirstBalance(const PlanRequest& request, const Layout& layout)
    : request_(request), layout_(layout), state_(request, layout), mover_(request, state_) {
  mover_.balance();
}

std::vector<Task> FirstBalance::finish() {
  Tried even_first = improved(request_, state_, mover_, /*caps_first=*/false);
  const bool few = request_.cluster.num_servers() <= kFewServers;
  if (even_first.overrun == 0 && (!few || request_.rounds < PlanRequest::kMostRounds)) {
    return even_first.tasks;
  }
  if (even_first.overrun == 0) {
    return with_other_goals(request_, layout_, std::move(even_first)).tasks;
  }
  Tried caps_first = attempt(request_, layout_, true);
  return caps_first.overrun < even_first.overrun ? caps_first.tasks : even_first.tasks;
}

std::vector<Task> schedule_balanced(const PlanRequest& request, const Layout& layout) {
  return FirstBalance(request, layout).finish();
}

}  // namespace distca
