#pragma once
// What every server of a plan gets, beside plain packing, as bars; who sends to whom, as a matrix.

#include <string>

#include "distca/plan/plan.h"

namespace distca::cli {

/// Plain packing of the same nano-batch without caps, priced as the plan is: what it is compared
/// with. Without the profile that the plan was priced with (nothing): by pairs.
Plan plain_packing(const Plan& plan, const std::shared_ptr<const AttentionProfile>& profile);

/// What was balanced, as far as both plans have it: predicted time, else pairs.
int64_t ServerLoad::*balanced_figure(const Plan& before, const Plan& after);

/// Load (over the server's share), tokens, memory, bytes in and out of every server; of many
/// servers those that matter most.
void print_bars(const Plan& before, const Plan& after);

/// MiB of Q, K, V from each rank (row) to each (column).
std::string exchange_matrix(const Plan& plan);

/// "12.5"
std::string mebibytes(int64_t bytes);

}  // namespace distca::cli
