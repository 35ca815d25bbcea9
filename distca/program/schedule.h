#pragma once
// How programs are made: (step plan, model shape, schedule) -> program of one rank. A schedule
// orders operations: to add one, see docs/program.md.
// Pure functions; any thread. Paper 4.1, 4.5.
//
// Where a nano-batch's buffers are reused: those of a pass's messages by every layer of
// nano-batches that share a slot (ping-pong: two slots, else one); received Q, K, V that are kept
// have one buffer a layer and slot; accumulators, packed at once, one for all slots.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "distca/cost/memory_price.h"
#include "distca/plan/attention_exchange.h"
#include "distca/plan/layer_time.h"
#include "distca/program/program.h"

namespace distca {

enum class Schedule {
  kBlocking,  // one operation after another, every exchange waited for where it stands
  kOverlap,   // one nano-batch at a time; exchanges run under the tasks that need nothing of them
  kPingPong,  // two nano-batches at a time: each exchange runs under the other's compute; a
              // nano-batch without a partner is played as kOverlap does
};
struct ScheduleName {
  std::string_view name;
  std::string_view summary;  // one line, for --help
  Schedule schedule;
};
inline constexpr std::array<ScheduleName, 3> kSchedules{{
    {"blocking", "one operation after another", Schedule::kBlocking},
    {"overlap", "exchanges under the tasks that need nothing of them", Schedule::kOverlap},
    {"ping-pong", "two nano-batches: exchanges of one under the other's compute",
     Schedule::kPingPong},
}};
/// A name of kSchedules; anything else is a CHECK.
Schedule schedule_of(std::string_view name);
std::string_view schedule_name(Schedule schedule);
std::vector<std::string> schedule_names();
/// What the planner takes exchanges to run under, in steps of so many nano-batches.
Hiding hiding_of(Schedule schedule, int64_t nano_batches = 2);

/// What a rank has of one nano-batch.
struct NanoPart {
  std::shared_ptr<const AttentionExchange> exchange;
  bool resent = false;  // Q, K, V travel again for backward: servers do not keep them
};
struct ProgramRequest {
  Schedule schedule = Schedule::kPingPong;
  enum class Kind { kTrain, kEvaluate } kind = Kind::kTrain;  // evaluate: forward and loss only
  bool holds_weights = true;  // false: a dedicated server, exchanges and tasks only
  std::vector<NanoPart> nano_batches;
  ModelShape model;
};

Program build_program(const ProgramRequest& request);

}  // namespace distca
