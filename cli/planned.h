#pragma once
// A plan made or read, checked, and what was measured of it.

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "distca/plan/plan.h"

namespace distca::cli {

/// How a plan's shape was asked for; a plan from a file does not say.
struct AskedShape {
  std::string dtype;
  int64_t tensor_parallel = 1;
  int64_t layers = 1;            // whose memory is counted
  bool all_activations = false;  // of those layers; else only Q, K, V, O
};

struct Timing {
  double seconds = 0;
  int calls = 1;  // the best of so many
};

/// A valid plan.
struct Planned {
  Plan plan;
  std::shared_ptr<const AttentionProfile> profile;  // what its times were checked with, if any
  std::optional<AskedShape> asked;
  std::optional<Timing> plan_time;  // none of a plan from a file
  Timing metadata_time;             // all ranks, forward and backward
  /// The longest that one rank sends or receives Q, K, V and O of one layer, forward, one message
  /// after another, on the links of the cluster.
  int64_t wire_ns = 0;

  bool by_time() const { return plan.options.by_time(); }
};

/// Plans, validates and builds all ranks' exchanges. Throws Error(kPlan) as make_plan does.
Planned make_and_check(const PlanRequest& request, const std::optional<AskedShape>& asked);

/// A plan that somebody else may have written or changed. `profile`: what it was priced with, if
/// that is there; without it predicted times are not checked. Throws Error(kPlan) for a file that
/// is no valid plan, or priced by something else than `profile`.
Planned read_and_check(const std::filesystem::path& path,
                       std::shared_ptr<const AttentionProfile> profile);

}  // namespace distca::cli
