#pragma once
// When each rank had posted each exchange: what tells a wait for a rank that comes late from a wait
// for bytes on their way. Any thread; refers to the events it was made from.

#include <cstdint>
#include <span>
#include <vector>

#include "distca/trace/event.h"

namespace distca {

class Posts {
 public:
  /// `ranks`: each rank's events.
  explicit Posts(std::span<const std::vector<TraceEvent>* const> ranks);

  /// The event in which `rank` posted the exchange `tag` of a step; null where none is recorded.
  const TraceEvent* of(int rank, int64_t step, uint32_t tag) const;

 private:
  std::vector<std::vector<const TraceEvent*>> ranks_;  // ascending step, tag
};

}  // namespace distca
