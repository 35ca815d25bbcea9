#include "distca/plan/layout_cap.h"

#include "distca/base/error.h"

namespace distca {

void check_tokens_fit(const PlanRequest& request) {
  const int num_workers = request.cluster.num_workers;
  const int64_t total = request.nano_batch.num_tokens();
  const int64_t cap = request.cluster.max_tokens_per_worker;
  if (cap > 0 && total > cap * num_workers) {
    throw Error(
        ErrorKind::kPlan,
        "{} tokens do not fit {} workers of at most {} tokens ({} in all): use more workers, a "
        "larger cap or a smaller nano-batch",
        total, num_workers, cap, cap * num_workers);
  }
}

}  // namespace distca
