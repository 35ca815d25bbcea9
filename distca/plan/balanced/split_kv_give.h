#pragma once
// The greedy search of split_kv.cc: servers above their bound give rectangles of queries x keys to
// servers below theirs. Any thread may call the functions; a state belongs to one search.

#include "distca/plan/balanced/assignment.h"

namespace distca {

/// Makes the move with the lowest price of bytes for each unit of load first, until no server is
/// above its bound or none below its own can take more.
void give_rectangles(Assignment& state, const PlanRequest& request);

/// For bounds that are out of reach because blocks are too coarse or caps too tight: moves load
/// from the server with most for its capacity to the one with least, as long as the higher of the
/// two falls.
void shed_rectangles(Assignment& state, const PlanRequest& request);

}  // namespace distca
