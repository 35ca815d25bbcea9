#pragma once
// Scheduler `greedy-original`: the paper's released planner (paper 4.4, "What the released planner
// does"), to have its bytes for batches that no table lists. Any thread.

#include "distca/plan/scheduler.h"

namespace distca {

/// An item is a document or a chunk of one: a head and the tail that mirrors it. Receivers, the
/// largest deficit first, take from servers above their share while they lack more than tolerance x
/// share: the item with the fewest elements per pair gives its middle-most pairs of (head, tail)
/// rows, as many as donor, receiver and item allow, cut at any token. The donors' load is bound by
/// nothing, so max/mean may exceed 1 + tolerance.
///
/// Counts, to choose: Q of the head rows and the keys of the whole document, wherever they are, as
/// the original does. Ignores: O, the Q of the tail rows, keys already there, caps, windows, nodes.
///
/// Shares follow capacity (the original knows equal servers only). Where the original needs even
/// lengths, rows are counted one by one. Doubles by + - * / only, ties by the item that came first.
/// Time: moves x items.
std::vector<Task> schedule_greedy_original(const PlanRequest& request, const Layout& layout);

}  // namespace distca
