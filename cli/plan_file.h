#pragma once
// Plans that are shown, and those that somebody else wrote.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "distca/base/error.h"
#include "distca/plan/plan.h"

namespace distca::cli {

inline constexpr int kMostServers = 65'536;

/// A valid plan.
struct Planned {
  Plan plan;
  /// The profile that the plan's times were checked with; null if there was none.
  std::shared_ptr<const AttentionProfile> profile;
};

/// Plans, and validates the plan. Throws Error(kPlan) as make_plan does.
Planned make_and_check(const PlanRequest& request);

/// The JSON of one plan or, if there are several, of a list of them (docs/plan_format.md).
std::string plans_to_json(const std::vector<Plan>& plans);
/// Reads plans that somebody else may have written or changed. `profile` is the one that priced
/// them, if that is at hand; without it, predicted times are not checked. Throws Error(kPlan) if a
/// plan of the file is not valid, or was priced by something else than `profile`.
std::vector<Plan> read_and_check(const std::filesystem::path& path,
                                 const std::shared_ptr<const AttentionProfile>& profile);

/// Throws Error(kind) if there are more tokens or servers than a plan may have.
void check_counts(int64_t tokens, int64_t servers, ErrorKind kind);
/// Throws Error(kind) if a plan could become too large: larger than check_counts allows, or of more
/// bytes than an int64 holds if every server read every token.
void check_sizes(const NanoBatch& nano_batch, const Cluster& cluster, const AttentionShape& shape,
                 ErrorKind kind);

}  // namespace distca::cli
