#include "distca/plan/plan.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

#include "distca/base/error.h"
#include "distca/cost/task_price.h"
#include "distca/plan/accounting.h"
#include "distca/plan/layout_sequential.h"
#include "distca/plan/scheduler.h"

namespace distca {
namespace {

constexpr int64_t kMaxCapacity = 1'000'000'000;  // sum of all servers; keeps products in int64
constexpr int64_t kMaxTolerancePpm = 10'000'000;

void check_link(const char* name, const Link& link) {
  DISTCA_THROW_IF(link.bytes_per_us < 1 || link.latency_ns < 0, ErrorKind::kPlan,
                  "link {}: {} bytes per microsecond after {} ns; at least 1 after at least 0",
                  name, link.bytes_per_us, link.latency_ns);
}

void check_cluster(const Cluster& cluster) {
  DISTCA_THROW_IF(cluster.num_workers < 1, ErrorKind::kPlan,
                  "a plan needs at least 1 worker, not {}", cluster.num_workers);
  DISTCA_THROW_IF(cluster.num_servers() < cluster.num_workers, ErrorKind::kPlan,
                  "{} capacities for {} workers: one a rank, workers first (0 for a worker that "
                  "does not serve)",
                  cluster.num_servers(), cluster.num_workers);
  int64_t sum = 0;
  for (const int64_t capacity : cluster.capacity) {
    DISTCA_THROW_IF(capacity < 0 || capacity > kMaxCapacity, ErrorKind::kPlan,
                    "capacity {} is not in 0 .. {}", capacity, kMaxCapacity);
    sum += capacity;
  }
  DISTCA_THROW_IF(sum < 1 || sum > kMaxCapacity, ErrorKind::kPlan,
                  "capacities add up to {}, not to 1 .. {}", sum, kMaxCapacity);
  DISTCA_THROW_IF(cluster.max_tokens_per_worker < 0, ErrorKind::kPlan,
                  "a cap of {} tokens per worker is negative (0: no cap)",
                  cluster.max_tokens_per_worker);
  check_link("inside", cluster.inside);
  check_link("between", cluster.between);
}

void check_request(const PlanRequest& request) {
  DISTCA_CHECK(request.shape.mask.kind == MaskKind::kCausal, "plans are for causal masks");
  check_cluster(request.cluster);
  int64_t tokens = 0;
  const auto& documents = request.nano_batch.documents;
  for (size_t i = 0; i < documents.size(); ++i) {
    DISTCA_CHECK_EQ(documents[i].id, static_cast<int64_t>(i));
    const int64_t length = documents[i].length;
    DISTCA_THROW_IF(length < 0 || length > kMostTokens, ErrorKind::kPlan,
                    "document {} has {} tokens, not 0 .. {}", i, length, kMostTokens);
    tokens += length;
  }
  DISTCA_THROW_IF(tokens > kMostTokens, ErrorKind::kPlan, "a nano-batch of {} tokens exceeds {}",
                  tokens, kMostTokens);
  const Cluster& cluster = request.cluster;
  DISTCA_THROW_IF(
      std::min({cluster.max_send_bytes, cluster.max_receive_bytes, cluster.max_memory_bytes}) < 0,
      ErrorKind::kPlan, "a cap on bytes is negative (0: no cap)");
  const int64_t tolerance = request.options.tolerance_ppm.value();
  DISTCA_THROW_IF(tolerance < 0 || tolerance > kMaxTolerancePpm, ErrorKind::kPlan,
                  "a tolerance of {} ppm is not in 0 .. {}", tolerance, kMaxTolerancePpm);
}

/// A document's tasks cost at most what it costs whole, or its last block as often as it has
/// blocks: that has to add up, with room for finer cuts.
void check_times(const PlanRequest& request) {
  if (!request.profile) return;
  const TaskPrice price(request.shape, request.profile.get());
  double most = 0;
  for (const Document& document : request.nano_batch.documents) {
    const int64_t length = document.length;
    const Range last{std::max<int64_t>(0, length - kBlockTokens), length};
    most += static_cast<double>(ceil_div(length, kBlockTokens)) *
                static_cast<double>(price(last, {0, length})) +
            static_cast<double>(price({0, length}, {0, length}));
  }
  DISTCA_THROW_IF(
      !(most < 0x1p60), ErrorKind::kPlan,
      "the times of profile {} are too long: the tasks of {} tokens may add up to 2^60 ns",
      profile_name(*request.profile), request.nano_batch.num_tokens());
}

/// The request with the scheduler's own choices where it names none.
PlanRequest resolved(PlanRequest request) {
  const SchedulerEntry& scheduler = find_scheduler(request.options.scheduler);
  PlanOptions& options = request.options;
  if (options.layout.empty()) options.layout = scheduler.layout;
  if (!options.tolerance_ppm) options.tolerance_ppm = scheduler.tolerance_ppm;
  DISTCA_THROW_IF(scheduler.only_this_layout && options.layout != scheduler.layout,
                  ErrorKind::kPlan, "scheduler {} has a layout of its own, {}, and takes no {}",
                  scheduler.name, scheduler.layout, options.layout);
  const LayoutEntry& layout = find_layout(options.layout);
  DISTCA_THROW_IF(find_layout(scheduler.layout).even_tokens && !layout.even_tokens,
                  ErrorKind::kPlan,
                  "layout {} gives workers uneven tokens, which scheduler {} does not allow",
                  layout.name, scheduler.name);
  DISTCA_THROW_IF((options.split_kv || options.spread) && !scheduler.split_kv, ErrorKind::kPlan,
                  "scheduler {} knows no {}", scheduler.name,
                  options.split_kv ? "split-KV" : "spread");
  options.split_kv |= options.spread;
  options.price = request.profile ? profile_name(*request.profile) : "pairs";
  check_request(request);
  check_times(request);
  return request;
}

/// Describes what exceeds a cap of the cluster. Empty if nothing does.
std::string exceeded_cap(const Plan& plan) {
  const Cluster& cluster = plan.cluster;
  const struct {
    const char* what;
    const char* name;
    int64_t ServerLoad::*bytes;
    int64_t cap;
  } caps[] = {
      {"send", "max_send_bytes", &ServerLoad::send_bytes, cluster.max_send_bytes},
      {"receive", "max_receive_bytes", &ServerLoad::receive_bytes, cluster.max_receive_bytes},
      {"hold", "max_memory_bytes", &ServerLoad::memory_bytes, cluster.max_memory_bytes},
  };
  for (const auto& [what, name, bytes, cap] : caps) {
    for (size_t rank = 0; rank < plan.load.size() && cap > 0; ++rank) {
      if (plan.load[rank].*bytes <= cap) continue;
      return fmt::format("rank {} would {} {} bytes, {} is {}", rank, what, plan.load[rank].*bytes,
                         name, cap);
    }
  }
  return "";
}

void check_capacity(const Plan& plan) {
  if (!find_scheduler(plan.options.scheduler).capacities) return;
  for (int server = 0; server < plan.cluster.num_servers(); ++server) {
    if (plan.cluster.capacity[server] > 0 || plan.load[server].pairs == 0) continue;
    throw Error(ErrorKind::kPlan,
                "server {} has capacity 0, scheduler {} would give it {} pairs: use another "
                "scheduler or a capacity",
                server, plan.options.scheduler, plan.load[server].pairs);
  }
}

Plan with_tasks_of(const SchedulerEntry& scheduler, const PlanRequest& request, Layout layout) {
  Plan plan{.nano_batch = request.nano_batch,
            .cluster = request.cluster,
            .shape = request.shape,
            .options = request.options,
            .layout = std::move(layout)};
  plan.tasks = scheduler.schedule(request, plan.layout);
  std::ranges::sort(plan.tasks, {}, [](const Task& task) {
    return std::tie(task.server, task.document, task.q.begin, task.kv.begin);
  });
  plan.load = account(plan, request.profile.get());
  return plan;
}

Plan scheduled(const PlanRequest& request, Layout layout) {
  Plan plan = with_tasks_of(find_scheduler(request.options.scheduler), request, std::move(layout));
  check_capacity(plan);
  const std::string exceeded = exceeded_cap(plan);
  DISTCA_THROW_IF(!exceeded.empty(), ErrorKind::kPlan, "{}", exceeded);
  return plan;
}

HomeCost cost_of_homes(const Plan& plan) {
  HomeCost cost{.load = max_over_share(plan)};
  for (const ServerLoad& load : plan.load) cost.bytes += load.receive_bytes + load.o_send_bytes;
  for (int worker = 0; worker < plan.layout.num_workers(); ++worker)
    cost.tokens = std::max(cost.tokens, plan.layout.num_tokens(worker));
  return cost;
}

/// The plan or, where that is at least as good in every respect, plain packing: then nothing is
/// gained by other homes.
Plan plan_or_packed(const PlanRequest& request, Plan plan) {
  Plan packed = with_tasks_of(find_scheduler("local"), request, sequential_layout(request));
  return cost_of_homes(packed).as_good_as(cost_of_homes(plan)) && exceeded_cap(packed).empty()
             ? packed
             : plan;
}

}  // namespace

Plan make_plan(const PlanRequest& request) {
  const PlanRequest whole = resolved(request);
  Plan plan = scheduled(whole, find_layout(whole.options.layout).make(whole));
  const bool chose_homes =
      whole.options.scheduler == "balanced" && whole.options.layout == "balanced";
  return chose_homes ? plan_or_packed(whole, std::move(plan)) : plan;
}

Plan make_plan(const PlanRequest& request, Layout layout) {
  return scheduled(resolved(request), std::move(layout));
}

Layout make_layout(const PlanRequest& request) {
  const PlanRequest whole = resolved(request);
  return find_layout(whole.options.layout).make(whole);
}

double max_over_mean(const Cluster& cluster, const std::vector<int64_t>& load) {
  const auto total = static_cast<double>(std::reduce(load.begin(), load.end()));
  const auto& capacity = cluster.capacity;
  const auto sum = static_cast<double>(std::reduce(capacity.begin(), capacity.end()));
  double highest = 0;
  for (size_t server = 0; server < load.size(); ++server) {
    if (load[server] == 0) continue;
    if (server >= capacity.size() || capacity[server] == 0)
      return std::numeric_limits<double>::infinity();
    const double share = static_cast<double>(capacity[server]) / sum;
    highest = std::max(highest, static_cast<double>(load[server]) / (total * share));
  }
  return total == 0 ? 1 : highest;
}

double max_over_mean(const Plan& plan, int64_t ServerLoad::*figure) {
  std::vector<int64_t> load;
  for (const ServerLoad& server : plan.load) load.push_back(server.*figure);
  return max_over_mean(plan.cluster, load);
}

double max_over_share(const Plan& plan) {
  return max_over_mean(plan, plan.options.by_time() ? &ServerLoad::time_ns : &ServerLoad::pairs);
}

int64_t load_of(const Plan& plan, size_t rank) {
  return plan.options.by_time() ? plan.load[rank].time_ns : plan.load[rank].pairs;
}

std::vector<int64_t> packed_load(const Plan& plan) {
  PlanRequest request{plan.nano_batch, plan.cluster, plan.shape, plan.options};
  request.cluster.max_tokens_per_worker = 0;
  const Layout packed = sequential_layout(request);
  std::vector<int64_t> pairs(plan.load.size(), 0);
  for (int worker = 0; worker < packed.num_workers(); ++worker) {
    for (const Segment& segment : packed.workers[worker]) {
      pairs[worker] += plan.shape.mask.pairs(segment.tokens, {0, segment.tokens.end});
    }
  }
  return pairs;
}

}  // namespace distca
