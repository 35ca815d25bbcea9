#pragma once
// Groups of servers that share the rows of a document and divide its keys. Any thread, one search a
// thread.

#include "distca/plan/assignment.h"

namespace distca {

/// Servers with neighbouring row pieces of one document become a group where that costs fewer
/// bytes: each member computes the rows of all members with its stripe of the keys, so that every
/// member keeps its load and the group fetches each key once. With g members of P rows each that
/// end at key E, g pieces cost g E keys, the group E keys and g (g - 1) P rows: with areas C the
/// best g is about E / (2 sqrt(C)) for 4 heads a key head, and pairs pay from E = 3 sqrt(C) on.
/// `row_permille`: price of Q and O in this choice, in thousandths; less makes larger groups, which
/// spread what the holders of a document's first keys send.
void divide_keys(Assignment& state, const PlanRequest& request, int64_t row_permille);

}  // namespace distca
