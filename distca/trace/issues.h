#pragma once
// When each rank had issued each exchange: what tells a wait for a rank that comes late from a wait
// for bytes on their way. Any thread; refers to the events it was made from.

#include <cstdint>
#include <span>
#include <vector>

#include "distca/trace/event.h"

namespace distca {

class Issues {
 public:
  /// `ranks`: each rank's events.
  explicit Issues(std::span<const std::vector<TraceEvent>* const> ranks);

  /// The event in which `rank` issued the exchange `tag` of a step; null where none is recorded.
  const TraceEvent* of(int rank, int64_t step, uint32_t tag) const;

 private:
  std::vector<std::vector<const TraceEvent*>> ranks_;  // ascending step, tag
};

}  // namespace distca
