#include "distca/plan/pipeline/pipeline_plan.h"

#include <algorithm>
#include <array>
#include <utility>

#include "distca/base/error.h"
#include "distca/base/parallel.h"
#include "distca/cost/finish_time.h"
#include "distca/cost/task_price.h"
#include "distca/plan/accounting.h"
#include "distca/plan/bounds.h"
#include "distca/plan/pipeline/pipeline_time.h"
#include "distca/plan/scheduler.h"

namespace distca {
namespace {

constexpr int64_t kMostLoad = int64_t{1} << 61;
constexpr double kMostBeyond = 10;         // the largest tolerance that a plan may have
constexpr int64_t kSegmentRounds = 1'024;  // rounds x segments that planning has time for

void check_request(const PipelineRequest& request) {
  const Grid& grid = request.grid;
  const auto ranks = static_cast<size_t>(grid.num_ranks());
  DISTCA_CHECK(grid.stages >= 1 && grid.replicas >= 1 && grid.dedicated >= 0,
               "{} stages of {} replicas, {} dedicated servers", grid.stages, grid.replicas,
               grid.dedicated);
  DISTCA_CHECK(request.slots == 1 || request.slots == 2, "{} slots", request.slots);
  DISTCA_CHECK(!request.nano_batches.empty(), "no nano-batch");
  DISTCA_CHECK_EQ(request.homes.size(), request.nano_batches.size());
  for (const Layout& home : request.homes) DISTCA_CHECK_EQ(home.num_workers(), grid.replicas);
  DISTCA_CHECK(request.speeds.empty() || request.speeds.size() == ranks,
               "speeds of {} ranks, there are {}", request.speeds.size(), ranks);
  DISTCA_CHECK(request.capacity.empty() || request.capacity.size() == ranks,
               "capacities of {} ranks, there are {}", request.capacity.size(), ranks);
  DISTCA_CHECK(request.ends.empty() || request.ends.size() == static_cast<size_t>(grid.stages),
               "times of the ends of {} stages, there are {}", request.ends.size(), grid.stages);
}

/// Returns true if some stage has nothing of its own to play.
bool is_fill(std::span<const int> nano_batches, const OtherWork& other_work) {
  for (size_t stage = 0; stage < nano_batches.size(); ++stage) {
    if (nano_batches[stage] < 0 &&
        (other_work.nano_batches.empty() || other_work.nano_batches[stage] < 0))
      return true;
  }
  return false;
}

/// How the load of a slot is shared.
struct Shares {
  std::vector<int64_t> capacity;
  std::optional<int64_t> tolerance_ppm = {};  // PlanOptions::tolerance_ppm of the plan
  bool operator==(const Shares&) const = default;
};

/// By how much a server may exceed its share in ticks that are not weighed, if nobody has said it:
/// where weight gradients may wait, half of what it may elsewhere.
std::optional<int64_t> asked_tolerance_ppm(const PipelineRequest& request) {
  if (request.options.tolerance_ppm || !lets_weights_wait(request))
    return request.options.tolerance_ppm;
  return tolerance_where_weights_wait(find_scheduler(request.options.scheduler).tolerance_ppm);
}
int64_t own_tolerance_ppm(const PipelineRequest& request) {
  return asked_tolerance_ppm(request).value_or(
      find_scheduler(request.options.scheduler).tolerance_ppm);
}

/// Every server may take what it finishes within the tick's least length and the tolerance.
Shares shares_of_fill(const PipelineRequest& request, std::span<const RankWork> work,
                      int64_t load) {
  const int64_t ps = least_ps(work, request.balance_target, load);
  const double longer =
      static_cast<double>(ps) * static_cast<double>(own_tolerance_ppm(request)) * 1e-6;
  const int64_t most = std::min(
      kMostLoad, load_within(work, request.balance_target, ps + static_cast<int64_t>(longer)));
  const double beyond = static_cast<double>(most - load) / static_cast<double>(load);
  return {.capacity = even_capacities(work, request.balance_target, most),
          .tolerance_ppm = static_cast<int64_t>(std::clamp(beyond, 0.0, kMostBeyond) * 1e6)};
}

/// [ranks] The load of each rank's own rows.
std::vector<double> home_loads(const PipelineRequest& request, std::span<const int> nano_batches) {
  const TaskPrice price(request.shape, request.profile.get());
  std::vector<double> loads(request.grid.num_ranks(), 0);
  for (int stage = 0; stage < request.grid.stages; ++stage) {
    if (nano_batches[stage] < 0) continue;
    const Layout& home = request.homes[nano_batches[stage]];
    for (int replica = 0; replica < request.grid.replicas; ++replica) {
      for (const Segment& segment : home.workers[replica])
        loads[request.grid.rank(stage, replica)] +=
            static_cast<double>(price.of_rows(segment.tokens));
    }
  }
  return loads;
}

/// Workers with tokens may take what they finish within the tick's least length and the tolerance;
/// idle servers share what is then left. So a longer tick takes load from them alone.
Shares shares_that_stay(const PipelineRequest& request, std::span<const int> nano_batches,
                        std::span<const RankWork> work, int64_t load, int64_t tolerance_ppm) {
  const double own = 1e-6 * static_cast<double>(own_tolerance_ppm(request));
  const double ps = static_cast<double>(least_ps(work, request.balance_target, load)) *
                    (1 + 1e-6 * static_cast<double>(tolerance_ppm));
  const std::vector<double> at_home = home_loads(request, nano_batches);
  double longest = 0;
  for (const RankWork& rank : work) longest = std::max(longest, linear_ps(rank));
  std::vector<double> most(work.size(), 0);
  double left = static_cast<double>(load) * (1 + own), idle_rate = 0;
  const auto rate = [&](size_t rank) {
    return 1000 / static_cast<double>(work[rank].attention_ps_per_kload);
  };
  for (size_t rank = 0; rank < work.size(); ++rank) {
    if (!work[rank].serves) continue;
    const double begin =
        request.balance_target == BalanceTarget::kWhole ? linear_ps(work[rank]) : longest;
    most[rank] = std::max(0.0, ps - begin) * rate(rank);
    if (work[rank].tokens > 0)
      left -= std::min(most[rank], at_home[rank]);
    else
      idle_rate += rate(rank);
  }
  double sum = 0, largest = 0;
  for (size_t rank = 0; rank < work.size(); ++rank) {
    if (work[rank].serves && work[rank].tokens == 0)
      most[rank] = std::clamp(left * rate(rank) / idle_rate, 0.0, most[rank]);
    sum += most[rank];
    largest = std::max(largest, most[rank]);
  }
  Shares shares;
  for (const double one : most) {
    const auto units = static_cast<int64_t>(one / largest * kCapacityUnits + 0.5);
    shares.capacity.push_back(one > 0 ? std::max<int64_t>(1, units) : 0);
  }
  const double beyond = sum / static_cast<double>(load) - 1;
  shares.tolerance_ppm = static_cast<int64_t>(std::clamp(beyond, 0.0, kMostBeyond) * 1e6);
  return shares;
}

Shares shares_of(const PipelineRequest& request, std::span<const int> nano_batches, Pass pass,
                 const OtherWork& other_work) {
  const std::optional<int64_t> own = asked_tolerance_ppm(request);
  if (!request.capacity.empty()) return {.capacity = request.capacity, .tolerance_ppm = own};
  // One stage shares its plans between the passes.
  const std::optional<Pass> alone = request.grid.stages == 1 ? std::nullopt : std::optional(pass);
  const std::vector<RankWork> work = slot_work(request, nano_batches, alone, other_work);
  const int64_t load =
      slot_load(request, nano_batches) + load_of_other_pass(request, pass, other_work.nano_batches);
  const bool known = std::ranges::all_of(
      work, [](const RankWork& rank) { return rank.attention_ps_per_kload > 0; });
  if (is_fill(nano_batches, other_work) && known && load > 0)
    return shares_of_fill(request, work, load);
  return {.capacity = even_capacities(work, request.balance_target, load), .tolerance_ppm = own};
}

/// A stage's documents go behind those of earlier stages, and so do their numbers.
void append(const PipelineRequest& request, int nano, int stage, NanoBatch& all, Layout& layout) {
  const auto before = static_cast<int64_t>(all.documents.size());
  for (const Document& document : request.nano_batches[nano].documents)
    all.documents.push_back({.id = before + document.id, .length = document.length});
  for (int replica = 0; replica < request.grid.replicas; ++replica) {
    std::vector<Segment>& worker = layout.workers[request.grid.rank(stage, replica)];
    worker = request.homes[nano].workers[replica];
    for (Segment& segment : worker) segment.document += before;
  }
}

/// The rounds of improvement in a pipeline. There are fewer with more segments, since each takes
/// time in proportion to the segments.
int rounds_for(const Layout& layout) {
  int64_t segments = 1;
  for (const std::vector<Segment>& worker : layout.workers) segments += std::ssize(worker);
  return static_cast<int>(std::min<int64_t>(PlanRequest::kMostRounds, kSegmentRounds / segments));
}

Plan slot_plan(const PipelineRequest& request, std::span<const int> nano_batches,
               const OtherWork& other_work, const Shares& shares) {
  const Grid& grid = request.grid;
  PlanRequest slot{.cluster = request.cluster,
                   .shape = request.shape,
                   .options = request.options,
                   .profile = request.profile};
  slot.cluster.num_workers = grid.num_workers();
  slot.cluster.capacity = shares.capacity;
  slot.options.tolerance_ppm = shares.tolerance_ppm;
  Layout layout;
  layout.workers.resize(grid.num_workers());
  for (int stage = 0; stage < grid.stages; ++stage) {
    if (nano_batches[stage] >= 0)
      append(request, nano_batches[stage], stage, slot.nano_batch, layout);
  }
  if (is_fill(nano_batches, other_work) && request.fill_ticks == FillTicks::kSpread)
    slot.options.spread |= find_scheduler(slot.options.scheduler).split_kv;
  if (grid.stages > 1) {
    slot.rounds = rounds_for(layout);
    slot.even_receives = true;
  }
  return make_plan(slot, std::move(layout));
}

/// Returns true if the plan of a slot is weighed against what must be done in turn: linear work,
/// the longest attention and, where a bandwidth is given, exchanges.
bool is_weighed(const PipelineRequest& request, std::span<const int> nano_batches,
                const OtherWork& other_work) {
  return (request.bytes_per_us > 0 || lets_weights_wait(request)) &&
         is_fill(nano_batches, other_work) && other_work.nano_batches.empty() &&
         request.capacity.empty() && !request.speeds.empty();
}

/// The plan with which a slot is predicted to be over first. Tolerances grow as long as that helps;
/// then the one between the last two is tried.
Plan weighed_plan(const PipelineRequest& request, std::span<const int> nano_batches, Pass pass,
                  const OtherWork& other_work) {
  const std::vector<RankWork> work = slot_work(request, nano_batches, pass, other_work);
  const int64_t load = slot_load(request, nano_batches);
  Plan best;
  SlotTime least;  // time of `best`
  // Keeps the plan with these shares if it is the best so far, and returns true then.
  const auto consider = [&](const Shares& shares) {
    Plan plan = slot_plan(request, nano_batches, other_work, shares);
    const SlotTime time = slot_time(request, plan, nano_batches, pass, other_work);
    if (!best.load.empty() && time.total_ps() >= least.total_ps()) return false;
    best = std::move(plan);
    least = time;
    return true;
  };
  const auto consider_tolerance = [&](int64_t tolerance_ppm) {
    return consider(shares_that_stay(request, nano_batches, work, load, tolerance_ppm));
  };
  consider(shares_of(request, nano_batches, pass, other_work));
  int64_t before = own_tolerance_ppm(request);
  for (const int64_t larger : {50'000, 100'000, 200'000, 400'000, 800'000}) {
    if (least.is_hidden()) break;
    if (larger <= before) continue;
    if (!consider_tolerance(larger) || least.is_hidden()) {
      consider_tolerance((before + larger) / 2);
      break;
    }
    before = larger;
  }
  return best;
}

/// The inputs of a slot's plan. Slots with equal inputs have equal plans.
struct Asked {
  std::vector<int> nano_batches;  // [stages]
  Shares shares;
  std::optional<Pass> pass;  // set if the plan is weighed, instead of shares; then with weights
  std::vector<StageWeights> weights;  // [slots, this one first][stages]
  OtherWork other_work;               // the first such slot's
  bool operator==(const Asked& other) const {
    return nano_batches == other.nano_batches && shares == other.shares && pass == other.pass &&
           weights == other.weights;
  }
};

Asked asked_of(const PipelineRequest& request, std::span<const int> nano_batches, Pass pass,
               const OtherWork& other_work) {
  Asked asked{.nano_batches = {nano_batches.begin(), nano_batches.end()}, .other_work = other_work};
  if (is_weighed(request, nano_batches, other_work)) {
    asked.pass = pass;  // the pass decides what travels
    for (const auto& of_slot : {other_work.weights, other_work.partner_weights})
      asked.weights.insert(asked.weights.end(), of_slot.begin(), of_slot.end());
  } else {
    asked.shares = shares_of(request, nano_batches, pass, other_work);
  }
  return asked;
}

Plan made_as(const PipelineRequest& request, const Asked& asked) {
  const auto& [nano_batches, shares, pass, weights, other_work] = asked;
  return pass ? weighed_plan(request, nano_batches, *pass, other_work)
              : slot_plan(request, nano_batches, other_work, shares);
}

/// The index of a slot's plan among those that will be made as asked, or -1 if it has none.
int index_of_plan(const PipelineRequest& request, const PipelinePlan& made, int tick, int slot,
                  std::vector<Asked>& all) {
  const std::vector<int> nano_batches = made.nano_batches_of(tick, slot);
  if (std::ranges::max(nano_batches) < 0) return -1;
  OtherWork other_work{.weights = made.weights_of(tick, slot)};
  if (request.slots == 2) other_work.partner_weights = made.weights_of(tick, 1 - slot);
  Asked asked = asked_of(request, nano_batches, made.ticks[tick].stages[0].pass, other_work);
  const auto known = std::ranges::find(all, asked);
  const auto index = static_cast<int>(known - all.begin());
  if (known == all.end()) all.push_back(std::move(asked));
  return index;
}

}  // namespace

int PipelinePlan::num_micro_batches() const {
  return (static_cast<int>(nano_batches.size()) + slots - 1) / slots;
}

int PipelinePlan::nano_batch(int micro_batch, int slot) const {
  const int nano = micro_batch * slots + slot;
  return micro_batch >= 0 && nano < static_cast<int>(nano_batches.size()) ? nano : -1;
}

std::vector<int> PipelinePlan::nano_batches_of(int tick, int slot) const {
  std::vector<int> all;
  for (const TickStage& stage : ticks[tick].stages)
    all.push_back(nano_batch(stage.micro_batch, slot));
  return all;
}

PipelinePlan make_pipeline_plan(const PipelineRequest& request) {
  check_request(request);
  PipelinePlan made{.grid = request.grid,
                    .slots = request.slots,
                    .trains = request.trains,
                    .nano_batches = request.nano_batches,
                    .homes = request.homes,
                    .outstanding_weight_gradients = request.outstanding_weight_gradients};
  made.ticks = aligned_ticks(request.grid.stages, made.num_micro_batches(), request.trains);
  made.weight_gradients = plan_weight_gradients(request, made.ticks);
  std::vector<Asked> asked;  // [plans]
  for (int tick = 0; tick < static_cast<int>(made.ticks.size()); ++tick) {
    std::vector<int>& of_slot = made.plan_of_slot.emplace_back();
    for (int slot = 0; slot < request.slots; ++slot)
      of_slot.push_back(index_of_plan(request, made, tick, slot, asked));
  }
  made.plans.resize(asked.size());
  for_each_in_parallel(asked.size(), request.threads,
                       [&](size_t i) { made.plans[i] = made_as(request, asked[i]); });
  return made;
}

std::span<const StageWeights> PipelinePlan::weights_of(int tick, int slot) const {
  if (weight_gradients.empty()) return {};
  return weight_gradients[tick][slot];
}

Plan make_slot_plan(const PipelineRequest& request, std::span<const int> nano_batches, Pass pass,
                    const OtherWork& other_work) {
  check_request(request);
  return made_as(request, asked_of(request, nano_batches, pass, other_work));
}

}  // namespace distca
