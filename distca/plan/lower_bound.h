#pragma once
// How few bytes the exchange of core attention could cost. Plans are measured against this bound.
// Any thread may call the function.

#include <cstdint>

#include "distca/plan/plan.h"

namespace distca {

/// The bytes of Q, K, V and O (one layer, forward) that no whole-context plan can go below,
/// whatever its layout, if no server may carry more than (1 + plan.options.tolerance_ppm / 10^6)
/// times its share of the pairs. A plan with split-KV may go below the bound. With a window, no
/// bound is known, and the result is 0.
/// A document of P times the load that a server may carry is on P servers at least. The fewest keys
/// are read if each of them computes a contiguous piece where it lives, from the top down. So a
/// document of L tokens costs K and V of this many tokens: the sum over integers 0 <= i < P of
/// about L sqrt(1 - i / P), minus L. P need not be an integer (the last, smaller piece counts too).
/// Every server counts as the largest one.
/// Counts: bytes of K and V. Ignores: Q and O (a plan may move none), balance_target of tokens,
/// caps. Doubles by + - * / sqrt only. Time: documents + servers + pieces.
int64_t lower_bound_bytes(const Plan& plan);

}  // namespace distca
