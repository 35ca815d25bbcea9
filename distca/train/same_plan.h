#pragma once
// Every rank plans for itself. Before a plan is used, the ranks tell each other what it is, or why
// there is none. Thread rule: as the communicator's.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "distca/base/error.h"
#include "distca/comm/communicator.h"

namespace distca {

/// What a rank tells of a batch.
struct PlanWord {
  uint64_t hash = 0;  // of the plans
  int64_t bad_tokens = 0, targets_left_out = 0;
};

/// Tells the ranks, which call it together, each other's words. Gives the sums of the counts. That
/// not all have the same hash is a CHECK. If a rank has a `failure` in place of a plan, all get
/// the failure of the first such rank instead.
PlanWord compare_plans(Communicator& comm, const PlanWord& mine, std::optional<Error>* failure);

/// On all ranks, which call it together, what rank `from` says: at most Error::kMostBytes of it.
std::string text_of_rank(Communicator& comm, int from, const std::string& mine,
                         std::string_view operation);

}  // namespace distca
