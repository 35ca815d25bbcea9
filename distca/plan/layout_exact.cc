#include "distca/plan/layout_exact.h"

#include <algorithm>

#include "distca/plan/layout_caps.h"

namespace distca {

Layout sequential_exact_layout(const PlanRequest& request) {
  check_tokens_fit(request);
  const int num_workers = request.cluster.num_workers;
  const int64_t total = request.nano_batch.num_tokens();
  Layout layout;
  layout.workers.resize(num_workers);
  int worker = 0;
  int64_t room = total / num_workers;
  for (const Document& document : request.nano_batch.documents) {
    Range rest{0, document.length};
    while (!rest.empty()) {
      while (room == 0) {
        ++worker;
        room = total * (worker + 1) / num_workers - total * worker / num_workers;
      }
      auto& segments = layout.workers[worker];
      const int64_t tokens = std::min(rest.size(), room);
      room -= tokens;
      if (tokens == rest.size()) {
        segments.push_back({document.id, rest});
        break;
      }
      const int64_t head = tokens / 2;
      const int64_t tail = tokens - head;
      if (head > 0) segments.push_back({document.id, {rest.begin, rest.begin + head}});
      segments.push_back({document.id, {rest.end - tail, rest.end}});
      rest = {rest.begin + head, rest.end - tail};
    }
  }
  return layout;
}

}  // namespace distca
