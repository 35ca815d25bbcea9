#pragma once
// Makes or reads a plan, checks it, and measures what it costs.

#include <filesystem>
#include <memory>
#include <optional>

#include "distca/plan/plan.h"

namespace distca::cli {

/// A valid plan, with what was measured.
struct Planned {
  Plan plan;
  /// The profile that the plan's times were checked with; null if there was none.
  std::shared_ptr<const AttentionProfile> profile;
  std::optional<double> plan_seconds;  // how long planning took; none for a plan from a file
  /// How long it took to build the exchanges of all ranks, forward and backward.
  double metadata_seconds = 0;
  /// The longest time in which one rank sends, or receives, its Q, K, V and O of one layer in
  /// forward, one message after another, on the links of the cluster.
  int64_t wire_ns = 0;

  /// Returns true if the plan balances time, not pairs.
  bool by_time() const { return plan.options.by_time(); }
};

/// A plan of ours, validated and measured. `profile` is the one that priced it, or null.
Planned checked(Plan plan, std::shared_ptr<const AttentionProfile> profile);

/// Plans, validates and builds the exchanges of all ranks. Throws Error(kPlan) as make_plan does.
Planned make_and_check(const PlanRequest& request);

/// Reads a plan that somebody else may have written or changed. `profile` is the one that priced
/// it, if that is at hand; without it, predicted times are not checked. Throws Error(kPlan) if the
/// file is not a valid plan, or was priced by something else than `profile`.
Planned read_and_check(const std::filesystem::path& path,
                       std::shared_ptr<const AttentionProfile> profile);

}  // namespace distca::cli
