#pragma once
// Split-KV tasks on a layout that is there: rectangles of queries x keys, merged by LSE
// at the queries' home. For scheduler `balanced` with options.split_kv or options.spread
// (beyond paper 4.2, which moves rows with all their keys). Any thread.

#include <vector>

#include "distca/plan/plan.h"

namespace distca {

/// Every query starts where it lives. First, servers that hold row pieces of one long document
/// divide its keys among themselves (split_kv_groups.h); with options.spread as far as it
/// lowers the largest send or receive. Then servers above (1 + tolerance) times their share of the
/// load give rectangles away, the one with the fewest bytes per load first: rows, low or high keys
/// of all rows, corners, what the receiver has the keys or the rows of (split_kv_give.h).
///
/// No worse than tasks with all their keys, which are made too and counted exactly: returned are
/// those closer to the caps, then to the load bounds, then with the lower price of bytes (with
/// options.spread: fewer bytes of the busiest rank), then those with all keys.
/// With a window only the second step: sub-ranges save little there.
///
/// Counts: load as TaskPrice; Q and O of a query once per server that computes any part of it away
/// from home, K and V of a key once per server, at the prices of their links; the caps on bytes and
/// memory. Ignores: LSE, latency, the merge at home, and that small rectangles may run slower than
/// TaskPrice says without a profile.
/// Time: about that of the tasks made times the servers that know a document.
std::vector<Task> schedule_with_split_kv(const PlanRequest& request, const Layout& layout);

}  // namespace distca
