#include "distca/plan/baselines/baselines.h"

#include <algorithm>

#include "distca/plan/bounds.h"

namespace distca {
namespace {

constexpr int64_t kBreakpoint = 64'000;  // tokens at which attention and the rest cost the same

/// x^2 + x, x = tokens / kBreakpoint, in units of 1 / kBreakpoint^2.
int64_t work(int64_t tokens) { return tokens * tokens + kBreakpoint * tokens; }

int lowest(const std::vector<int64_t>& values) {
  return static_cast<int>(std::min_element(values.begin(), values.end()) - values.begin());
}

}  // namespace

Layout wlb_layout(const PlanRequest& request) {
  const int num_workers = request.cluster.num_workers;
  const int64_t cap = request.cluster.max_tokens_per_worker;
  const int64_t most = cap > 0 ? cap : request.nano_batch.num_tokens() / num_workers;
  std::vector<Document> documents = request.nano_batch.documents;
  std::erase_if(documents, [](const Document& document) { return document.length == 0; });
  std::stable_sort(documents.begin(), documents.end(),
                   [](const Document& a, const Document& b) { return a.length > b.length; });

  Layout layout;
  layout.workers.resize(num_workers);
  std::vector<int64_t> works(num_workers, 0);
  std::vector<int64_t> tokens(num_workers, 0);
  const auto place = [&](const Document& document, int worker) {
    layout.workers[worker].push_back({document.id, {0, document.length}});
    works[worker] += work(document.length);
    tokens[worker] += document.length;
  };
  std::vector<Document> left;
  for (const Document& document : documents) {
    int worker = lowest(works);
    if (tokens[worker] + document.length > most) worker = lowest(tokens);
    if (tokens[worker] + document.length > most) {
      left.push_back(document);
    } else {
      place(document, worker);
    }
  }
  for (const Document& document : left) place(document, lowest(works));
  check_workers_fit(request, layout);
  return layout;
}

}  // namespace distca
