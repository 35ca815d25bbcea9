#include "bench/swapped_plan.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "distca/base/error.h"
#include "distca/plan/accounting.h"
#include "distca/plan/validate.h"

namespace distca::bench {

Plan swapped_plan(const SwappedBatch& batch, const AttentionShape& shape) {
  constexpr int kWorkers = 2;
  Plan plan;
  plan.cluster = Cluster::in_place(kWorkers);
  plan.shape = shape;
  plan.layout.workers.resize(kWorkers);
  std::vector<int64_t> lengths;
  const auto add = [&](int64_t tokens, int home, int server) {
    if (tokens == 0) return;
    const auto document = static_cast<int64_t>(lengths.size());
    const Range all{0, tokens};
    lengths.push_back(tokens);
    plan.layout.workers[home].push_back({document, all});
    plan.tasks.push_back({.document = document, .q = all, .kv = all, .server = server});
  };
  for (int worker = 0; worker < kWorkers; ++worker) {
    add(batch.home_tokens / 2, worker, worker);
    add(batch.home_tokens - batch.home_tokens / 2, worker, worker);
    add(batch.swapped_tokens, worker, 1 - worker);
  }
  plan.nano_batch = NanoBatch::from_lengths(lengths);
  std::sort(plan.tasks.begin(), plan.tasks.end(), [](const Task& a, const Task& b) {
    return std::tie(a.server, a.document) < std::tie(b.server, b.document);
  });
  plan.load = account(plan);
  const std::vector<std::string> violations = validate(plan);
  DISTCA_CHECK(violations.empty(), "{}", violations[0]);
  return plan;
}

}  // namespace distca::bench
