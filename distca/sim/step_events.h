#pragma once
// The events of a step that was played by prices (sim/player.h): those that runtime/executor would
// have recorded of it, so that a predicted step is looked at as one that ran.
//
//   const TimedStep step = timed_step(programs, prices, wire);
//   const std::vector<TraceEvent> events = step_events(programs, 0, step, prices, 1);
//   const std::string lines = chrome_events(0, {}, events);  // trace/chrome.h
//
// Two things are known of a predicted step that nobody can measure: a message under way (kFlight)
// ends when all of it is there, also where its receiver has not waited for it yet; and every rank's
// step (kStep) lasts until the last rank's end, for which it waits in an event of its own.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "distca/sim/player.h"
#include "distca/trace/event.h"

namespace distca {

/// The name of the wait (kWait) behind a rank's last operation until the last rank's end. It awaits
/// no rank in particular.
inline constexpr const char* kEndOfStep = "end of the step";

/// The events of the rank of one program, ascending by their begin, the step first. Times are
/// seconds since the step began; `number` is the step's. The programs and prices must be those by
/// which the step was played, else it is a CHECK. Any thread may call it.
std::vector<TraceEvent> step_events(std::span<const Program> programs, size_t program,
                                    const TimedStep& step, const OpPrices& prices, int64_t number);

}  // namespace distca
