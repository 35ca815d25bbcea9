#include <algorithm>
#include <cstddef>
#include <iterator>
#include <queue>
#include <utility>
#include <vector>

#include "distca/plan/baselines/baselines.h"
#include "distca/plan/bounds.h"

namespace distca {
namespace {

/// Documents that will be on one worker.
struct Part {
  int64_t work = 0;
  std::vector<Document> documents;
};

/// Some of the documents, divided over the workers: the heaviest part first, and those without
/// documents left out.
using Division = std::vector<Part>;

bool is_heavier(const Part& a, const Part& b) { return a.work > b.work; }

/// Puts the heaviest part of `from` to the lightest of `into`, and so on.
void combine(Division& into, Division&& from, size_t num_workers) {
  const size_t before = into.size(), first_place = num_workers - from.size();
  for (size_t i = from.size(); i-- > 0;) {
    Part& part = from[i];
    const size_t place = num_workers - 1 - i;
    if (place >= before) {
      into.push_back(std::move(part));
      continue;
    }
    into[place].work += part.work;
    std::ranges::move(part.documents, std::back_inserter(into[place].documents));
  }
  // Only these have changed.
  const auto changed = into.begin() + static_cast<std::ptrdiff_t>(std::min(first_place, before));
  std::stable_sort(changed, into.end(), is_heavier);
  std::inplace_merge(into.begin(), changed, into.end(), is_heavier);
}

Division divided(const std::vector<Document>& documents, size_t num_workers) {
  std::vector<Division> divisions;
  // The difference between the heaviest and the lightest part of a division, and minus its index:
  // of equally uneven ones, the first comes first.
  std::priority_queue<std::pair<int64_t, int64_t>> queue;
  const auto enqueue = [&](int64_t division) {
    const Division& of = divisions[division];
    const int64_t lightest = of.size() < num_workers ? 0 : of.back().work;
    queue.emplace(of.front().work - lightest, -division);
  };
  const auto pop = [&] {
    const int64_t division = -queue.top().second;
    queue.pop();
    return division;
  };
  for (const Document& document : documents) {
    divisions.push_back({Part{.work = document_work(document.length), .documents = {document}}});
    enqueue(std::ssize(divisions) - 1);
  }
  while (queue.size() > 1) {
    const int64_t first = pop(), second = pop();
    combine(divisions[first], std::move(divisions[second]), num_workers);
    enqueue(first);
  }
  return divisions.empty() ? Division() : std::move(divisions[pop()]);
}

}  // namespace

Layout karmarkar_karp_layout(const PlanRequest& request) {
  Layout layout;
  layout.workers.resize(static_cast<size_t>(request.cluster.num_workers));
  Division parts = divided(longest_first(request.nano_batch), layout.workers.size());
  for (size_t worker = 0; worker < parts.size(); ++worker) {
    std::ranges::sort(parts[worker].documents, {}, &Document::id);
    for (const Document& document : parts[worker].documents)
      layout.workers[worker].push_back({document.id, {0, document.length}});
  }
  check_workers_fit(request, layout);
  return layout;
}

}  // namespace distca
