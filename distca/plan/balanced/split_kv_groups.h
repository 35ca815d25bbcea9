#pragma once
// A step of split_kv.cc: servers that compute rows of one document form groups and divide its keys.
// Any thread may call the function; a state belongs to one search.

#include "distca/plan/balanced/assignment.h"

namespace distca {

/// Servers that hold neighbouring pieces of one document become a group where that costs fewer
/// bytes. Each member then computes the rows of all members with a stripe of the keys, so that it
/// keeps the load that it had. The group fetches each key once, and each row once for each member.
/// Say that g members have pieces of P rows that end near key E. They fetch g E keys before, and E
/// keys and g (g - 1) P rows after. With a load of P E = C for each member, and Q and O of a row
/// having the bytes of four keys, groups of two pay from E = 2.8 sqrt(C) on, and E / (2 sqrt(C)) is
/// the best g. A document's pieces, in their order, are cut into groups so that the exact price is
/// lowest.
///
/// With options.spread, the documents whose keys keep the busiest rank busy are then cut into
/// larger groups, as long as that lowers the largest send or receive and costs few bytes. Without
/// it, this is done as far as max_send_bytes asks for it.
///
/// Every piece of the state must be at home. Does nothing with a window, where no key is read far
/// away.
void divide_keys(Assignment& state, const PlanRequest& request);

}  // namespace distca
