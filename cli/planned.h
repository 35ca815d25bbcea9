#pragma once
// A plan made or read, checked, and what was measured of it.

#include <filesystem>
#include <memory>
#include <optional>

#include "distca/plan/plan.h"

namespace distca::cli {

/// A valid plan.
struct Planned {
  Plan plan;
  std::shared_ptr<const AttentionProfile> profile;  // what its times were checked with, if any
  std::optional<double> plan_seconds;               // none of a plan from a file
  double metadata_seconds = 0;                      // all ranks, forward and backward
  /// The longest that one rank sends or receives Q, K, V and O of one layer, forward, one message
  /// after another, on the links of the cluster.
  int64_t wire_ns = 0;

  bool by_time() const { return plan.options.by_time(); }
};

/// Plans, validates and builds all ranks' exchanges. Throws Error(kPlan) as make_plan does.
Planned make_and_check(const PlanRequest& request);

/// A plan that somebody else may have written or changed. `profile`: what it was priced with, if
/// that is there; without it predicted times are not checked. Throws Error(kPlan) for a file that
/// is no valid plan, or priced by something else than `profile`.
Planned read_and_check(const std::filesystem::path& path,
                       std::shared_ptr<const AttentionProfile> profile);

}  // namespace distca::cli
