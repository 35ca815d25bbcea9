#pragma once
// Groups of servers that share rows of a document and divide its keys: a step of
// split_kv.cc. Any thread, one search a thread.

#include "distca/plan/balanced/assignment.h"

namespace distca {

/// Servers that hold neighbouring row pieces of one document become a group where that costs fewer
/// bytes: each member computes the rows of all of them with a stripe of the keys, of the load that
/// it had. The group fetches each key once, and each row once a member. With g members whose pieces
/// of P rows end near key E: g E keys before; E keys and g (g - 1) P rows after. So with a load of
/// P E = C a member, and Q and O of a row at the bytes of four keys, pairs pay from E = 2.8 sqrt(C)
/// on and E / (2 sqrt(C)) is the best g. The groups of a document: the best cut of its pieces in
/// order, exactly priced.
///
/// With options.spread, the documents whose keys keep the busiest rank busy are then cut into
/// larger groups, as long as that lowers the largest send or receive and costs few bytes; without
/// it, as far as max_send_bytes asks for.
///
/// For a state where every piece is at home. Does nothing with a window: no key is read far away.
void divide_keys(Assignment& state, const PlanRequest& request);

}  // namespace distca
