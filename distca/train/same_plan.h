#pragma once
// Every rank plans for itself. Before a plan is used, the ranks compare its hash, or get the
// reason why there is none. Thread rule: as the communicator's.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "distca/base/error.h"
#include "distca/comm/communicator.h"

namespace distca {

/// One rank's facts on the plans of a batch, which all ranks exchange.
struct PlanWord {
  uint64_t hash = 0;  // hash of the plans
  int64_t bad_tokens = 0, targets_left_out = 0;
  int64_t stop_signal = 0;  // by which the rank was asked to stop, or 0
};

/// Exchanges the words of all ranks, which call it together. Returns the sums of the counts and the
/// largest signal, which is 0 if there is a failure. It is
/// a CHECK that all have the same hash. If a rank has a `failure` in place of a plan, all get the
/// failure of the first such rank instead.
PlanWord compare_plans(Communicator& comm, const PlanWord& mine, std::optional<Error>* failure);

/// On all ranks, which call it together, what rank `from` says: at most Error::kMostBytes of it.
std::string text_of_rank(Communicator& comm, int from, const std::string& mine,
                         std::string_view operation);

}  // namespace distca
