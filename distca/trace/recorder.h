#pragma once
// Collects the events of one rank in memory. Thread rule: one thread.

#include <cstdint>
#include <utility>
#include <vector>

#include "distca/trace/event.h"

namespace distca {

/// The events of one rank.
class TraceRecorder {
 public:
  /// Sets the step of the events that are added from now on.
  void set_step(int64_t step) { step_ = step; }
  /// Adds an event of the step that was set last.
  void add(TraceEvent event) {
    event.step = step_;
    events_.push_back(std::move(event));
  }
  const std::vector<TraceEvent>& events() const { return events_; }

 private:
  int64_t step_ = 0;
  std::vector<TraceEvent> events_;
};

}  // namespace distca
