#pragma once
// Scheduler `balanced`: even load for the fewest bytes on a layout that is there (paper 4.2, 4.4).
// Any thread.

#include "distca/plan/scheduler.h"

namespace distca {

/// Every query starts where it lives. A server may carry (1 + tolerance) times its share of the
/// load; those above give shards to those below, the move with the lowest price per load first.
/// Then the dearest receivers' shards are taken back and given away anew, a fixed number of times.
/// What blocks of 128 leave above a bound goes block by block; the bound may stay out of reach
/// (fewer blocks than servers). Caps come before even load; what cannot meet them is left to
/// make_plan() to refuse.
///
/// Counts: load as TaskPrice; Q, O and keys of every move at the price of their links, a key token
/// once per server, keys that the donor no longer reads; twice what one server receives beyond the
/// keys of the longest document; the caps on bytes and memory.
/// Ignores: latency, tile padding in the choice of shapes.
///
/// Integers for loads and bytes, doubles by + - * / sqrt only, ties by the lowest id. Times:
/// bench/plan; with caps that bind, some hundred times as long.
std::vector<Task> schedule_balanced(const PlanRequest& request, const Layout& layout);

}  // namespace distca
