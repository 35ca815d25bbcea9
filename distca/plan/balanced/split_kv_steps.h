#pragma once
// The steps of split_kv.cc. In the first, servers that compute rows of one document form groups and
// divide its keys (split_kv_groups.cc). In the second, servers above their bound give rectangles of
// queries x keys to servers below theirs, in a greedy search (split_kv_give.cc). Any thread may
// call the functions; a state belongs to one search.

#include "distca/plan/balanced/assignment.h"

namespace distca {

/// Servers that hold neighbouring shards of one document become a group where that costs fewer
/// bytes. Each member then computes the rows of all members with a stripe of the keys, so that it
/// keeps the load that it had. The group fetches each key once, and each row once for each member.
/// Say that g members have shards of P rows that end near key E. They fetch g E keys before, and E
/// keys and g (g - 1) P rows after. With a load of P E = C for each member, and Q and O of a row
/// having the bytes of four keys, groups of two pay from E = 2.8 sqrt(C) on, and E / (2 sqrt(C)) is
/// the best g. A document's shards, in their order, are cut into groups so that the exact price is
/// lowest.
///
/// With options.spread, the documents whose keys keep the busiest rank busy are then cut into
/// larger groups, as long as that lowers the largest send or receive and costs few bytes. Without
/// it, this is done as far as max_send_bytes asks for it.
///
/// Every shard of the state must be at home. Does nothing with a window, where no key is read far
/// away.
Assignment divide_keys(Assignment state, const PlanRequest& request);

/// Makes the move with the lowest price of bytes for each unit of load first, until no server is
/// above its bound or none below its own can take more.
void give_rectangles(Assignment& state, const PlanRequest& request);

/// For bounds that are out of reach because blocks are too coarse or caps too tight: moves load
/// from the server with most for its capacity to the one with least, as long as the higher of the
/// two falls.
void shed_rectangles(Assignment& state, const PlanRequest& request);

}  // namespace distca
