#pragma once
// How few bytes core attention's exchange could cost: what plans are measured against. Any thread.

#include <cstdint>

#include "distca/plan/plan.h"

namespace distca {

/// Bytes of Q, K, V and O, one layer forward, that no whole-context plan can undercut on any layout
/// if no server may carry more pairs than (1 + plan.options.tolerance_ppm) times its share: a
/// document of P times that load is on P servers at least, and the fewest keys are read when each
/// computes a contiguous piece where it lives, from the top down. So a document of L tokens costs
/// K and V of sum over integers 0 <= i < P of about L sqrt(1 - i / P), minus L, tokens; P need not
/// be an integer (its last, smaller piece counts too). Every server counts as the largest one. A
/// plan with split-KV may go below it. Counts: K and V bytes. Ignores: Q and O (a plan may
/// move none), token evenness, caps. 0 with a window: no bound is known. Doubles by + - * / sqrt.
/// Time: documents + servers + pieces.
int64_t lower_bound_bytes(const Plan& plan);

}  // namespace distca
