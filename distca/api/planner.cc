#include "distca/api/planner.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "distca/api/inside/shape.h"
#include "distca/base/error.h"
#include "distca/cost/speeds.h"
#include "distca/cost/task_price.h"
#include "distca/plan/accounting.h"
#include "distca/plan/plan.h"
#include "distca/plan/scheduler.h"
#include "distca/plan/validate.h"

namespace distca::api {
namespace {

constexpr int64_t kMostLinearWork = int64_t{1} << 40;
constexpr double kMostTolerance = 1e6;

template <typename... Args>
void require(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) throw Error(ErrorKind::kPlan, format, std::forward<Args>(args)...);
}

NanoBatch documents_of(const std::vector<int64_t>& cu_seqlens) {
  require(!cu_seqlens.empty() && cu_seqlens[0] == 0, "cu_seqlens begins with 0");
  std::vector<int64_t> lengths;
  for (size_t i = 1; i < cu_seqlens.size(); ++i) {
    require(cu_seqlens[i] >= cu_seqlens[i - 1], "cu_seqlens descends from {} to {}",
            cu_seqlens[i - 1], cu_seqlens[i]);
    lengths.push_back(cu_seqlens[i] - cu_seqlens[i - 1]);
  }
  return NanoBatch::from_lengths(lengths);
}

constexpr int64_t kLinearFlops = 6;  // for each multiply-add, forward and backward

/// 7 for each multiply-add of QK^T and PV, forward and backward, which computes QK^T again.
int64_t flops_of_pair(const AttentionShape& shape) {
  return 7 * shape.num_heads * (shape.head_dim_qk + shape.head_dim_v);
}

/// Each rank's share, with which it is done with linear work and attention when the others are.
/// Times are flops of forward and backward.
std::vector<int64_t> whole_even_capacities(const BatchRequest& request, int num_holders,
                                           const NanoBatch& documents,
                                           const AttentionShape& shape) {
  require(request.linear_work > 0 && request.linear_work <= kMostLinearWork,
          "linear_work = {}: 0 .. {}", request.linear_work, kMostLinearWork);
  require(request.capacity.empty(), "capacity and linear_work: one of the two");
  const TaskPrice price(shape);
  const int64_t load = load_of(documents, price);
  std::vector<RankWork> work(request.num_ranks);
  for (int rank = 0; rank < request.num_ranks; ++rank) {
    RankWork& mine = work[rank];
    if (!request.tokens.empty()) {
      for (const Range& range : request.tokens[rank]) mine.tokens += range.size();
    } else if (rank < num_holders) {
      mine.tokens = documents.num_tokens() / num_holders;
    }
    if (mine.tokens > 0) mine.layers_ps_per_token = kLinearFlops * request.linear_work;
    mine.attention_ps_per_kload = 1000 * flops_of_pair(shape);
  }
  return even_capacities(work, BalanceTarget::kWhole, load);
}

Cluster cluster_of(const BatchRequest& request, const NanoBatch& documents,
                   const AttentionShape& shape) {
  require(request.num_ranks > 0, "num_ranks = {}: 1 or more", request.num_ranks);
  require(request.num_holders >= 0 && request.num_holders <= request.num_ranks,
          "num_holders = {}: 0 .. {}", request.num_holders, request.num_ranks);
  const bool chosen = request.tokens.empty() && request.num_holders > 0;
  Cluster cluster;
  cluster.num_workers = chosen ? request.num_holders : request.num_ranks;
  if (request.linear_work != 0) {
    cluster.capacity = whole_even_capacities(request, cluster.num_workers, documents, shape);
  } else {
    cluster.capacity =
        request.capacity.empty() ? std::vector<int64_t>(request.num_ranks, 1) : request.capacity;
  }
  require(cluster.num_servers() == request.num_ranks, "{} capacities for {} ranks",
          cluster.num_servers(), request.num_ranks);
  return cluster;
}

/// Every token of the batch exactly once.
void check_tokens(const BatchRequest& request) {
  require(static_cast<int>(request.tokens.size()) == request.num_ranks,
          "tokens of {} ranks for {} ranks", request.tokens.size(), request.num_ranks);
  std::vector<Range> all;
  for (const std::vector<Range>& of_rank : request.tokens) {
    std::ranges::copy_if(of_rank, std::back_inserter(all),
                         [](const Range& range) { return range.begin != range.end; });
  }
  std::ranges::sort(all);
  int64_t end = 0;
  for (const Range& range : all) {
    require(range.begin >= 0 && range.begin < range.end, "tokens {} to {} are no range",
            range.begin, range.end);
    require(range.begin <= end, "no rank holds tokens {} to {}", end, range.begin);
    require(range.begin == end, "token {} is held twice", range.begin);
    end = range.end;
  }
  require(end == request.cu_seqlens.back(), "ranks hold tokens up to {}, cu_seqlens ends at {}",
          end, request.cu_seqlens.back());
}

/// The documents' parts that lie in each rank's ranges.
Layout layout_of(const BatchRequest& request) {
  const std::vector<int64_t>& starts = request.cu_seqlens;
  Layout layout;
  for (const std::vector<Range>& ranges : request.tokens) {
    std::vector<Segment>& segments = layout.workers.emplace_back();
    for (Range rest : ranges) {
      while (!rest.empty()) {
        const auto next = std::ranges::upper_bound(starts, rest.begin);
        const int64_t document = next - starts.begin() - 1, start = starts[document];
        const int64_t end = std::min(rest.end, *next);
        segments.push_back({document, {rest.begin - start, end - start}});
        rest.begin = end;
      }
    }
  }
  return layout;
}

std::vector<std::vector<Range>> tokens_of(const Plan& plan) {
  const std::vector<int64_t> starts = plan.nano_batch.cu_seqlens();
  std::vector<std::vector<Range>> tokens(plan.cluster.num_servers());
  for (int rank = 0; rank < plan.layout.num_workers(); ++rank) {
    for (const Segment& segment : plan.layout.workers[rank]) {
      const int64_t start = starts[segment.document];
      const Range range{start + segment.tokens.begin, start + segment.tokens.end};
      if (!tokens[rank].empty() && tokens[rank].back().end == range.begin) {
        tokens[rank].back().end = range.end;
      } else {
        tokens[rank].push_back(range);
      }
    }
  }
  return tokens;
}

/// [rank] The pairs of the queries that it holds.
std::vector<int64_t> pairs_at_home(const Plan& plan) {
  std::vector<int64_t> pairs(plan.load.size(), 0);
  for (int rank = 0; rank < plan.layout.num_workers(); ++rank) {
    for (const Segment& segment : plan.layout.workers[rank])
      pairs[rank] += plan.shape.mask.pairs(segment.tokens, {0, segment.tokens.end});
  }
  return pairs;
}

std::optional<int64_t> tolerance_ppm_of(const BatchRequest& request) {
  if (!request.tolerance) return std::nullopt;
  const double tolerance = *request.tolerance;  // the comparisons are false for what is no number
  require(tolerance >= 0 && tolerance <= kMostTolerance, "tolerance = {}: 0 .. {}", tolerance,
          kMostTolerance);
  return std::llround(tolerance * 1e6);
}

}  // namespace

AttentionShape attention_shape(const Shape& shape, int64_t window_left) {
  require(
      shape.num_kv_heads > 0 && shape.num_heads > 0 && shape.num_heads % shape.num_kv_heads == 0,
      "num_heads = {}, num_kv_heads = {}: the first is a multiple of the second", shape.num_heads,
      shape.num_kv_heads);
  const int64_t head_dim_v = shape.head_dim_v == 0 ? shape.head_dim : shape.head_dim_v;
  for (const int64_t dim : {shape.head_dim, head_dim_v}) {
    require(dim > 0 && dim % 8 == 0, "head_dim = {}: a multiple of 8", dim);
  }
  require(window_left >= -1, "window_left = {}: -1, for all, or more", window_left);
  return {.num_heads = shape.num_heads,
          .num_kv_heads = shape.num_kv_heads,
          .head_dim_qk = shape.head_dim,
          .head_dim_v = head_dim_v,
          .type = shape.dtype,
          .mask = {.window_left = window_left}};
}

struct BatchPlan::State {
  std::string hash;
  std::vector<std::vector<Range>> tokens;
  std::vector<int64_t> pairs_at_home;
  Plan plan;
};

BatchPlan::BatchPlan(Plan plan) {
  require(plan.options.tolerance_ppm.has_value(), "the plan has no options.tolerance_ppm");
  ValidateOptions checks = checks_of(find_scheduler(plan.options.scheduler));
  checks.even_tokens = checks.whole_blocks = false;  // the caller's own
  const std::vector<std::string> faults = validate(plan, checks);
  require(faults.empty(), "{}", faults.empty() ? "" : faults[0]);
  state_ = std::make_shared<const State>(
      State{plan_hash(plan), tokens_of(plan), pairs_at_home(plan), std::move(plan)});
}

BatchPlan BatchPlan::from_json(std::string_view json) { return BatchPlan(plan_from_json(json)); }

int BatchPlan::num_ranks() const { return state_->plan.cluster.num_servers(); }
const std::vector<std::vector<Range>>& BatchPlan::tokens() const { return state_->tokens; }
int64_t BatchPlan::num_tokens(int rank) const {
  int64_t tokens = 0;
  for (const Range& range : state_->tokens.at(rank)) tokens += range.size();
  return tokens;
}
double BatchPlan::max_over_mean() const { return distca::max_over_mean(state_->plan); }
BatchPlan::Work BatchPlan::work(int64_t linear_work) const {
  const Plan& plan = state_->plan;
  Work work{};
  for (size_t rank = 0; rank < plan.load.size(); ++rank) {
    const double linear = kLinearFlops * static_cast<double>(linear_work) *
                          static_cast<double>(std::cmp_less(rank, plan.layout.num_workers())
                                                  ? plan.layout.num_tokens(static_cast<int>(rank))
                                                  : 0);
    const auto with = [&](int64_t pairs) {
      return linear + static_cast<double>(flops_of_pair(plan.shape) * pairs);
    };
    work.at_home = std::max(work.at_home, with(state_->pairs_at_home[rank]));
    work.planned = std::max(work.planned, with(plan.load[rank].pairs));
    work.mean += with(plan.load[rank].pairs) / static_cast<double>(plan.load.size());
  }
  return work;
}
int64_t BatchPlan::sent_bytes() const {
  int64_t bytes = 0;
  for (const ServerLoad& load : state_->plan.load) bytes += load.send_bytes + load.o_send_bytes;
  return bytes;
}
const std::string& BatchPlan::hash() const { return state_->hash; }
std::string BatchPlan::json() const { return plan_to_json(state_->plan); }
const Plan& BatchPlan::plan() const { return state_->plan; }

BatchPlan plan_batch(const BatchRequest& request) {
  NanoBatch documents = documents_of(request.cu_seqlens);
  const AttentionShape shape = attention_shape(request.shape, request.window_left);
  if (!request.tokens.empty()) check_tokens(request);
  Cluster cluster = cluster_of(request, documents, shape);
  const PlanRequest asked{.nano_batch = std::move(documents),
                          .cluster = std::move(cluster),
                          .shape = shape,
                          .options = {.scheduler = request.scheduler,
                                      .tolerance_ppm = tolerance_ppm_of(request),
                                      .split_kv = request.split_kv}};
  if (request.tokens.empty()) return BatchPlan(make_plan(asked));
  return BatchPlan(make_plan(asked, layout_of(request)));
}

}  // namespace distca::api
