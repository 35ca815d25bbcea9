#include "cli/planned.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "cli/plan_arguments.h"
#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/plan/exchange.h"
#include "distca/plan/scheduler.h"
#include "distca/plan/validate.h"

namespace distca::cli {
namespace {

/// A first call of less than this is mostly cold caches.
constexpr double kShortSeconds = 0.05;

/// The best of 3 calls, or of one that is long.
template <typename Call>
double seconds_of(Call call) {
  double best = 0;
  for (int calls = 0; calls < 3; ++calls) {
    const Stopwatch watch;
    call();
    best = calls == 0 ? watch.seconds() : std::min(best, watch.seconds());
    if (best >= kShortSeconds) break;
  }
  return best;
}

int64_t wire_ns(const Plan& plan, const PlanIndex& index) {
  const AttentionShape& shape = plan.shape;
  int64_t longest = 0;
  for (int rank = 0; rank < static_cast<int>(plan.load.size()); ++rank) {
    int64_t out = 0, in = 0;
    // A transfer carries Q, K, V one way and O of the same queries the other.
    const auto add = [&](const PeerTransfer& transfer, int64_t& there, int64_t& back) {
      const Link& link = plan.cluster.link(rank, transfer.peer);
      there += transfer_ns(
          link, 1,
          transfer.q_tokens * shape.q_token_bytes() + transfer.kv_tokens * shape.kv_token_bytes());
      if (transfer.q_tokens == 0) return;
      back += transfer_ns(link, 1, transfer.q_tokens * shape.o_token_bytes());
    };
    const RankExchange exchange = index.exchange(rank);
    for (const PeerTransfer& transfer : exchange.sends) add(transfer, out, in);
    for (const PeerTransfer& transfer : exchange.receives) add(transfer, in, out);
    longest = std::max({longest, out, in});
  }
  return longest;
}

void measure_exchange(Planned& planned) {
  planned.metadata_seconds = seconds_of([&] {
    const PlanIndex index(planned.plan);
    for (size_t rank = 0; rank < planned.plan.load.size(); ++rank) {
      index.exchange(static_cast<int>(rank));
    }
  });
  planned.wire_ns = wire_ns(planned.plan, PlanIndex(planned.plan));
}

}  // namespace

Planned checked(Plan plan, std::shared_ptr<const AttentionProfile> profile) {
  Planned planned{.plan = std::move(plan), .profile = std::move(profile), .plan_seconds = {}};
  ValidateOptions checks = checks_of(find_scheduler(planned.plan.options.scheduler));
  checks.profile = planned.profile.get();
  const std::vector<std::string> violations = validate(planned.plan, checks);
  DISTCA_CHECK(violations.empty(), "our own plan is invalid: {}", violations.front());
  measure_exchange(planned);
  return planned;
}

Planned make_and_check(const PlanRequest& request) {
  Plan plan;
  const double seconds = seconds_of([&] { plan = make_plan(request); });
  Planned planned = checked(std::move(plan), request.profile);
  planned.plan_seconds = seconds;
  return planned;
}

Planned read_and_check(const std::filesystem::path& path,
                       std::shared_ptr<const AttentionProfile> profile) {
  const std::string json = read_file(path, ErrorKind::kPlan);
  Planned planned{.plan = {}, .profile = std::move(profile), .plan_seconds = {}};
  ValidateOptions checks;
  try {
    planned.plan = plan_from_json(json);
    const Plan& plan = planned.plan;
    check_sizes(plan.nano_batch, plan.cluster, plan.shape, ErrorKind::kPlan);
    checks = checks_of(find_scheduler(plan.options.scheduler));
  } catch (const Error& error) {
    throw Error(ErrorKind::kPlan, "{}: {}", path.string(), error.what());
  }
  checks.profile = planned.profile.get();
  const std::string& price = planned.plan.options.price;
  DISTCA_THROW_IF(planned.profile && profile_name(*planned.profile) != price, ErrorKind::kPlan,
                  "{}: priced by {}, --profile is {}: give the one it was made with", path.string(),
                  price, profile_name(*planned.profile));
  const std::vector<std::string> violations = validate(planned.plan, checks);
  DISTCA_THROW_IF(!violations.empty(), ErrorKind::kPlan, "{}: not a valid plan: {}{}",
                  path.string(), violations.front(), violations.size() > 1 ? " (and more)" : "");
  measure_exchange(planned);
  return planned;
}

}  // namespace distca::cli
