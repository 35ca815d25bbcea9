#include "cli/plan_file.h"

#include <algorithm>

#include "distca/base/file.h"
#include "distca/base/json.h"
#include "distca/base/text.h"
#include "distca/plan/scheduler.h"
#include "distca/plan/validate.h"

namespace distca::cli {
namespace {

std::vector<std::string> violations_of(const Plan& plan, const AttentionProfile* profile) {
  ValidateOptions checks = checks_of(find_scheduler(plan.options.scheduler));
  checks.profile = profile;
  return validate(plan, checks);
}

void check_plan(const Plan& plan, const AttentionProfile* profile) {
  check_sizes(plan.nano_batch, plan.cluster, plan.shape, ErrorKind::kPlan);
  const std::string& price = plan.options.price;
  DISTCA_THROW_IF(profile != nullptr && profile_name(*profile) != price, ErrorKind::kPlan,
                  "priced by {}, plan.profile is {}: give the one it was made with", price,
                  profile_name(*profile));
  const std::vector<std::string> violations = violations_of(plan, profile);
  DISTCA_THROW_IF(!violations.empty(), ErrorKind::kPlan, "not a valid plan: {}{}",
                  violations.front(), violations.size() > 1 ? " (and more)" : "");
}

}  // namespace

Planned make_and_check(const PlanRequest& request) {
  Planned planned{.plan = make_plan(request), .profile = request.profile};
  const std::vector<std::string> violations = violations_of(planned.plan, planned.profile.get());
  DISTCA_CHECK(violations.empty(), "our own plan is invalid: {}", violations.front());
  return planned;
}

std::string plans_to_json(const std::vector<Plan>& plans) {
  if (plans.size() == 1) return plan_to_json(plans.front());
  Json list = Json::array();
  for (const Plan& plan : plans) list.push_back(Json::parse(plan_to_json(plan)));
  return canonical_json(list);
}

std::vector<Plan> read_and_check(const std::filesystem::path& path,
                                 const std::shared_ptr<const AttentionProfile>& profile) {
  const std::string text = read_file(path, ErrorKind::kPlan);
  std::vector<Plan> plans;
  try {
    const Json json = parse_json(text, "plan", ErrorKind::kPlan);
    if (json.is_array()) {
      DISTCA_THROW_IF(json.empty(), ErrorKind::kPlan, "a list without plans");
      for (const Json& one : json) plans.push_back(plan_from_json(one.dump()));
    } else {
      plans.push_back(plan_from_json(text));
    }
    for (const Plan& plan : plans) check_plan(plan, profile.get());
  } catch (const Error& error) {
    throw Error(ErrorKind::kPlan, "{}: {}", path.string(), error.what());
  }
  return plans;
}

void check_counts(int64_t tokens, int64_t servers, ErrorKind kind) {
  DISTCA_THROW_IF(tokens > kMostTokens || servers > kMostServers, kind,
                  "{} tokens on {} servers; at most {} on {}", tokens, servers, kMostTokens,
                  kMostServers);
}

void check_sizes(const NanoBatch& nano_batch, const Cluster& cluster, const AttentionShape& shape,
                 ErrorKind kind) {
  constexpr int64_t kMostCapacity = 1'000'000'000;
  const int64_t tokens = nano_batch.num_tokens();
  check_counts(tokens, cluster.num_servers(), kind);
  const int64_t capacity = *std::ranges::max_element(cluster.capacity);
  DISTCA_THROW_IF(capacity > kMostCapacity, kind, "a capacity of {}; at most {}", capacity,
                  kMostCapacity);
  const int64_t token_bytes =
      shape.q_token_bytes() + shape.kv_token_bytes() + shape.o_token_bytes();
  // All servers together may move a token as often as there are servers; one of them keeps it once.
  const MemoryPrice& memory = cluster.memory;
  const double moved = static_cast<double>(token_bytes) * cluster.num_servers();
  const double kept = static_cast<double>(memory.token_bytes) +
                      static_cast<double>(memory.kept_query_bytes) +
                      static_cast<double>(memory.kept_key_bytes);
  DISTCA_THROW_IF(static_cast<double>(tokens) * std::max(moved, kept) >= 0x1p60, kind,
                  "{} tokens x {} servers x {} of Q, K, V, O a token are more than can be counted",
                  tokens, cluster.num_servers(), human_bytes(token_bytes));
}

}  // namespace distca::cli
