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

enum class Overlap {
  kNone,      // one operation after another, every exchange waited for where it stands
  kWithin,    // one nano-batch at a time; exchanges run under the tasks that need nothing of them
  kPingPong,  // two nano-batches at a time: each exchange runs under the other's compute; a
              // nano-batch without a partner is played as kWithin does
};
struct OverlapName {
  std::string_view name;
  std::string_view summary;  // one line, for --help
  Overlap overlap;
};
inline constexpr std::array<OverlapName, 3> kOverlaps{{
    {"none", "one operation after another", Overlap::kNone},
    {"within", "exchanges under the tasks that need nothing of them", Overlap::kWithin},
    {"ping-pong", "two nano-batches: exchanges of one under the other's compute",
     Overlap::kPingPong},
}};
/// A name of kOverlaps; anything else is a CHECK.
Overlap overlap_of(std::string_view name);
std::string_view overlap_name(Overlap overlap);
std::vector<std::string> overlap_names();
/// What the planner takes exchanges to run under, in steps of so many nano-batches.
Hiding hiding_of(Overlap overlap, int64_t nano_batches = 2);

/// What a rank has of one nano-batch.
struct NanoPart {
  std::shared_ptr<const AttentionExchange> exchange;
  bool redispatched = false;  // Q, K, V travel again for backward: servers do not keep them
};
struct ProgramRequest {
  Overlap overlap = Overlap::kPingPong;
  enum class Kind { kTrain, kEvaluate } kind = Kind::kTrain;  // evaluate: forward and loss only
  bool holds_weights = true;  // false: a dedicated server, exchanges and tasks only
  std::vector<NanoPart> nano_batches;
  ModelShape model;
};

Program build_program(const ProgramRequest& request);

}  // namespace distca
