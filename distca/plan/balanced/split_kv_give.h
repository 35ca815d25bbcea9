#pragma once
// The greedy of split_kv.cc: servers above their bound give rectangles of queries x keys to
// servers below theirs. Any thread, one search a thread.

#include "distca/plan/balanced/assignment.h"

namespace distca {

/// The move with the lowest price of bytes per load first, until no server is above its bound or
/// none below its own can take more.
void give_rectangles(Assignment& state, const PlanRequest& request);

/// Where bounds are out of reach (blocks are too coarse, caps too tight): from the server with most
/// load per capacity to the one with least, as long as the higher of the two falls.
void shed_rectangles(Assignment& state, const PlanRequest& request);

}  // namespace distca
