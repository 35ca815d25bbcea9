#include "distca/plan/layout_sequential.h"

#include "distca/plan/bounds.h"

namespace distca {
namespace {

/// Tokens to take of `rest` (what is left of a document) so that `goal` is met as nearly as
/// allowed: nothing, or its last block (possibly short) and any number of whole ones. The lower one
/// of two equals.
int64_t nearest_allowed(const Range& rest, double goal) {
  const int64_t last_block = rest.end - round_down(rest.end - 1, kBlockTokens);
  int64_t lower = 0;
  int64_t upper = std::min(last_block, rest.size());
  if (goal > static_cast<double>(upper)) {
    const auto blocks = static_cast<int64_t>((goal - last_block) / kBlockTokens);
    lower = std::min(last_block + blocks * kBlockTokens, rest.size());
    upper = std::min(lower + kBlockTokens, rest.size());
  }
  return goal - lower <= upper - goal ? lower : upper;
}

}  // namespace

void take_ends(int64_t document, int64_t tokens, int64_t block, Range& rest,
               std::vector<Segment>& worker) {
  if (tokens == rest.size()) {
    worker.push_back({document, rest});
    rest.begin = rest.end;
    return;
  }
  const int64_t head = ceil_div(tokens, block) / 2 * block;
  const int64_t tail = tokens - head;
  if (head > 0) worker.push_back({document, {rest.begin, rest.begin + head}});
  if (tail > 0) worker.push_back({document, {rest.end - tail, rest.end}});
  rest = {rest.begin + head, rest.end - tail};
}

Layout sequential_layout(const PlanRequest& request) {
  check_tokens_fit(request);
  const int num_workers = request.cluster.num_workers;
  const auto total = static_cast<double>(request.nano_batch.num_tokens());
  Layout layout;
  layout.workers.resize(num_workers);
  int worker = 0;
  int64_t used = 0;
  for (const Document& document : request.nano_batch.documents) {
    for (Range rest{0, document.length}; !rest.empty();) {
      const double goal = total * (worker + 1) / num_workers - static_cast<double>(used);
      const int64_t tokens = nearest_allowed(rest, goal);
      const bool full = goal < static_cast<double>(rest.size());
      if (tokens > 0) take_ends(document.id, tokens, kBlockTokens, rest, layout.workers[worker]);
      used += tokens;
      if (full) ++worker;
    }
  }
  return layout;
}

}  // namespace distca
