#include "distca/trace/issues.h"

#include <algorithm>
#include <utility>

namespace distca {
namespace {

std::pair<int64_t, uint32_t> key(const TraceEvent* event) { return {event->step, event->tag}; }

}  // namespace

Issues::Issues(std::span<const std::vector<TraceEvent>* const> ranks) {
  for (const std::vector<TraceEvent>* events : ranks) {
    std::vector<const TraceEvent*>& issues = ranks_.emplace_back();
    for (const TraceEvent& event : *events) {
      if (event.kind == TraceKind::kLaunch) issues.push_back(&event);
    }
    std::ranges::sort(issues, {}, key);
  }
}

const TraceEvent* Issues::of(int rank, int64_t step, uint32_t tag) const {
  if (rank < 0 || rank >= static_cast<int>(ranks_.size())) return nullptr;
  const std::pair wanted{step, tag};
  const auto found = std::ranges::lower_bound(ranks_[rank], wanted, {}, key);
  return found != ranks_[rank].end() && key(*found) == wanted ? *found : nullptr;
}

}  // namespace distca
