#include "distca/plan/bounds.h"

#include <numeric>

#include "distca/base/error.h"

namespace distca {

void check_tokens_fit(const PlanRequest& request) {
  const int num_workers = request.cluster.num_workers;
  const int64_t total = request.nano_batch.num_tokens();
  const int64_t cap = request.cluster.max_tokens_per_worker;
  DISTCA_THROW_IF(
      cap > 0 && ceil_div(total, num_workers) > cap, ErrorKind::kPlan,
      "{} tokens do not fit {} workers of at most {} tokens (max_tokens_per_worker; {} in all): "
      "use more workers, a larger cap or a smaller nano-batch",
      total, num_workers, cap, cap * num_workers);
}

void check_workers_fit(const PlanRequest& request, const Layout& layout) {
  check_tokens_fit(request);
  const int64_t cap = request.cluster.max_tokens_per_worker;
  for (int worker = 0; cap > 0 && worker < layout.num_workers(); ++worker) {
    const int64_t tokens = layout.num_tokens(worker);
    DISTCA_THROW_IF(tokens >= cap + kBlockTokens, ErrorKind::kPlan,
                    "layout {} gives worker {} {} tokens, max_tokens_per_worker is {}: use a "
                    "larger cap or a layout with even tokens",
                    request.options.layout, worker, tokens, cap);
  }
}

std::vector<int64_t> load_bounds(const PlanRequest& request, int64_t total) {
  const std::vector<int64_t>& capacity = request.cluster.capacity;
  const int64_t sum = std::accumulate(capacity.begin(), capacity.end(), int64_t{0});
  std::vector<int64_t> bounds;
  for (const int64_t own : capacity) {
    const int64_t share = share_of(total, own, sum);
    bounds.push_back(share + share_of(share, request.options.tolerance_ppm.value(), 1'000'000));
  }
  return bounds;
}

}  // namespace distca
