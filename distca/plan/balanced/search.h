#pragma once
// Scheduler `balanced`: even load for the fewest bytes on a given layout (paper 4.2,
// appendix B). Any thread may call it.

#include <vector>

#include "distca/plan/balanced/assignment.h"
#include "distca/plan/balanced/moves.h"
#include "distca/plan/scheduler.h"

namespace distca {

/// Every query starts where it lives. A server may carry (1 + tolerance) times its share of the
/// load. Servers above this bound give shards to servers below theirs, and the move with the lowest
/// price for each unit of load goes first. Then, request.rounds times, the receivers that pay
/// most give their shards back, and these are given away anew. What then lies above a bound,
/// because rows move in blocks of 128, goes block by block. The bound may stay out of reach (fewer
/// blocks than servers). Caps come before even load. A plan that cannot meet them is left for
/// make_plan() to refuse.
///
/// Counts: load as TaskPrice; Q, O and keys of every move at the price of their links, where a key
/// token counts once for each server; keys that the donor no longer reads; what one server receives
/// beyond the keys of the longest document, twice; the caps on bytes and memory.
/// Ignores: latency, tile padding in the choice of shapes.
///
/// Loads and bytes are integers, doubles are made by + - * / sqrt only, and ties go to the lowest
/// id. bench/plan measures the time; with caps that bind, it is some hundred times as long.
std::vector<Task> schedule_balanced(const PlanRequest& request, const Layout& layout);

/// The first step of the same search, for those who want to look at it before they pay for the
/// rest.
class FirstBalance {
 public:
  /// Borrows both. Gives shards away until no server is above its bound.
  FirstBalance(const PlanRequest& request, const Layout& layout);

  const Assignment& state() const { return state_; }
  /// The result of schedule_balanced. Call it once.
  std::vector<Task> finish();

 private:
  const PlanRequest& request_;
  const Layout& layout_;
  Assignment state_;
  Mover mover_;
};

}  // namespace distca
