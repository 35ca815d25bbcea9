#include "bench/swapped_plan_testing.h"

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
  const auto add = [&](int64_t tokens, int64_t cut, int home, int server) {
    if (tokens == 0) return;
    const auto document = static_cast<int64_t>(lengths.size());
    lengths.push_back(tokens);
    plan.layout.workers[home].push_back({document, {0, tokens}});
    for (const Range q : {Range{0, cut}, Range{cut, tokens}}) {
      if (q.empty()) continue;
      plan.tasks.push_back({.document = document, .q = q, .kv = {0, q.end}, .server = server});
    }
  };
  for (int worker = 0; worker < kWorkers; ++worker) {
    // Where half of the pairs lie before it: length / sqrt(2).
    const int64_t half = round_down(batch.home_tokens * 181 / 256, kBlockTokens);
    add(batch.home_tokens, half, worker, worker);
    add(batch.swapped_tokens, 0, worker, 1 - worker);
  }
  plan.nano_batch = NanoBatch::from_lengths(lengths);
  std::sort(plan.tasks.begin(), plan.tasks.end(), [](const Task& a, const Task& b) {
    return std::tie(a.server, a.document, a.q.begin) < std::tie(b.server, b.document, b.q.begin);
  });
  plan.load = account(plan);
  const std::vector<std::string> violations = validate(plan);
  DISTCA_CHECK(violations.empty(), "{}", violations[0]);
  return plan;
}

}  // namespace distca::bench
