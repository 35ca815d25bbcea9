#include <algorithm>
#include <span>

#include "distca/base/error.h"
#include "distca/plan/baselines/baselines.h"

namespace distca {

std::vector<Task> schedule_all_gather(const PlanRequest& request, const Layout& layout) {
  std::vector<Task> tasks = schedule_local(request, layout);
  for (Task& task : tasks)
    task.kv = {0, request.nano_batch.documents[static_cast<size_t>(task.document)].length};
  return tasks;
}

Layout given_groups_layout(const PlanRequest& request) {
  const std::vector<Document>& documents = request.nano_batch.documents;
  const auto groups = static_cast<size_t>(1 + std::ranges::count(documents, 0, &Document::length));
  Layout layout;
  layout.workers.resize(static_cast<size_t>(request.cluster.num_workers));
  DISTCA_CHECK(layout.workers.size() % groups == 0, "{} groups of {} workers", groups,
               layout.workers.size());
  const size_t of_group = layout.workers.size() / groups;
  std::vector<int64_t> tokens(layout.workers.size(), 0);
  size_t first = 0;
  for (const Document& document : documents) {
    if (document.length == 0) {
      first += of_group;
      continue;
    }
    place_head_and_tail(document, std::span(layout.workers).subspan(first, of_group),
                        std::span(tokens).subspan(first, of_group));
  }
  return layout;
}

}  // namespace distca
