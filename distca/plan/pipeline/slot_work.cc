// The work of ranks in a slot of a tick: linear work and core attention, by passes.

#include <algorithm>
#include <numeric>

#include "distca/cost/task_price.h"
#include "distca/plan/accounting.h"
#include "distca/plan/bounds.h"
#include "distca/plan/pipeline/pipeline_plan.h"

namespace distca {
namespace {

/// Splits a time of both passes together: `of` / `parts` of it is forward.
struct Split {
  int64_t of, parts;
  int64_t operator()(int64_t time, std::optional<Pass> pass) const {
    const int64_t forward = share_of(time, of, parts);
    if (!pass || time == 0) return time;
    return std::max<int64_t>(1, *pass == Pass::kForward ? forward : time - forward);
  }
};
constexpr Split kAttentionSplit{2, 7};

/// Forward's part of linear work. Backward has twice its products, and some of them again.
Split linear_split(const PipelineRequest& request) {
  const int64_t all = 3 * request.products + request.products_again;
  const int64_t divisor = std::gcd(request.products, all);
  return {request.products / divisor, all / divisor};
}

/// Tokens of a nano-batch on each replica, on average.
int64_t tokens_of(const PipelineRequest& request, int nano) {
  return request.nano_batches[nano].num_tokens() / request.grid.replicas;
}

/// Linear work of a token in all layers; backward without the gradients by matrices that it leaves,
/// which take as long as forward.
int64_t layers_ps(const PipelineRequest& request, int rank, std::optional<Pass> pass,
                  bool leaves = false) {
  if (request.speeds.empty()) return 0;
  const int64_t ps = request.speeds[rank].linear_ps_per_token;
  const Split split = linear_split(request);
  return split(ps, pass) - (leaves && pass == Pass::kBackward ? split(ps, Pass::kForward) : 0);
}

int64_t ends_ps(const PipelineRequest& request, int stage, std::optional<Pass> pass) {
  if (request.ends.empty()) return 0;
  const EmbeddingHeadTime& ends = request.ends[stage];
  return (pass != Pass::kBackward ? ends.forward_ps_per_token : 0) +
         (pass != Pass::kForward ? ends.backward_ps_per_token : 0);
}

/// The rank's time for the other pass, and for weight gradients.
int64_t other_ps(const PipelineRequest& request, int rank, std::optional<Pass> pass,
                 const OtherWork& other_work) {
  const int stage = request.grid.stage(rank);
  const StageWeights weights =
      other_work.weights.empty() ? StageWeights() : other_work.weights[stage];
  int64_t ps = 0;
  for (const int nano : weights.plays)
    ps += layers_ps(request, rank, Pass::kForward) * tokens_of(request, nano);
  if (other_work.nano_batches.empty() || other_work.nano_batches[stage] < 0) return ps;
  const Pass other = pass == Pass::kForward ? Pass::kBackward : Pass::kForward;
  return ps + (layers_ps(request, rank, other, weights.leaves) + ends_ps(request, stage, other)) *
                  tokens_of(request, other_work.nano_batches[stage]);
}

}  // namespace

int64_t slot_load(const PipelineRequest& request, std::span<const int> nano_batches) {
  const TaskPrice price(request.shape, request.profile.get());
  int64_t load = 0;
  for (const int nano : nano_batches) {
    if (nano >= 0) load += load_of(request.nano_batches[nano], price);
  }
  return load;
}

int64_t load_of_other_pass(const PipelineRequest& request, Pass pass,
                           std::span<const int> nano_batches) {
  if (nano_batches.empty()) return 0;
  const int64_t load = slot_load(request, nano_batches);
  const int64_t forward = kAttentionSplit.of, backward = kAttentionSplit.parts - forward;
  return pass == Pass::kForward ? share_of(load, backward, forward)
                                : share_of(load, forward, backward);
}

std::vector<RankWork> slot_work(const PipelineRequest& request, std::span<const int> nano_batches,
                                std::optional<Pass> pass, const OtherWork& other_work) {
  const Grid& grid = request.grid;
  std::vector<RankWork> work(grid.num_ranks());
  for (int rank = 0; rank < grid.num_ranks(); ++rank) {
    const int stage = grid.stage(rank);
    work[rank].serves = request.in_place || stage < 0 || grid.dedicated == 0;
    const bool leaves =
        stage >= 0 && !other_work.weights.empty() && other_work.weights[stage].leaves;
    work[rank].layers_ps_per_token = layers_ps(request, rank, pass, leaves);
    if (!request.speeds.empty())
      work[rank].attention_ps_per_kload =
          kAttentionSplit(request.speeds[rank].attention_ps_per_kload, pass);
    if (stage < 0) continue;
    work[rank].other_ps = other_ps(request, rank, pass, other_work);
    if (nano_batches[stage] < 0) continue;
    work[rank].tokens = tokens_of(request, nano_batches[stage]);
    work[rank].ends_ps_per_token = ends_ps(request, stage, pass);
  }
  return work;
}

}  // namespace distca
