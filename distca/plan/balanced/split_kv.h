#pragma once
// Split-KV tasks on a given layout: rectangles of queries x keys, whose results are merged by LSE
// at the queries' home. Scheduler `balanced` calls this with options.split_kv or options.spread. It
// goes beyond paper 4.2, which moves rows with all their keys. Any thread may call it.

#include <vector>

#include "distca/plan/plan.h"

namespace distca {

/// Every query starts where it lives. First, servers that hold shards of one long document divide
/// its keys among themselves (divide_keys in split_kv_steps.h); with options.spread, as far as that
/// lowers the largest send or receive. Then servers above (1 + tolerance) times their share of the
/// load give rectangles away, and the one with the fewest bytes for each unit of load goes first.
/// Rectangles are rows, low or high keys of all rows, corners, or parts whose keys or rows the
/// receiver has (give_rectangles). With a window only the second step is made, because parts of the
/// keys save little there.
///
/// With options.spread, ranks may not send or receive more than a cap while rectangles are given
/// away. Several caps are tried, and the best result is kept; split-KV alone is one of them.
///
/// The result is no worse than tasks with all their keys, which are made too and counted exactly.
/// The tasks that are closer to the caps are returned. Between equals, the load bounds decide, then
/// the price of bytes (with options.spread, the bytes of the busiest rank), and then tasks with all
/// keys are preferred.
///
/// Counts: load as TaskPrice; Q and O of a query once for each server that computes any part of it
/// away from home, K and V of a key once for each server, at the prices of their links; the caps on
/// bytes and memory. Ignores: LSE, latency, the merge at home, and that small rectangles may run
/// slower than TaskPrice says without a profile.
/// Time: about that of the tasks made, times the servers that know a document.
std::vector<Task> schedule_with_split_kv(const PlanRequest& request, const Layout& layout);

}  // namespace distca
