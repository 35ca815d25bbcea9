#pragma once
// Finds out when each rank had issued each exchange. So a wait for a rank that comes late can be
// told from a wait for bytes that are on their way. Any thread may use it. It refers to the events
// that it was made from.

#include <cstdint>
#include <span>
#include <vector>

#include "distca/trace/event.h"

namespace distca {

/// The issues of all exchanges of a trace.
class Issues {
 public:
  /// `ranks` has the events of each rank.
  explicit Issues(std::span<const std::vector<TraceEvent>* const> ranks);

  /// The event in which `rank` issued the exchange `tag` of a step; null if none is recorded.
  const TraceEvent* of(int rank, int64_t step, uint32_t tag) const;

 private:
  std::vector<std::vector<const TraceEvent*>> ranks_;  // [ranks] ascending step, tag
};

}  // namespace distca
