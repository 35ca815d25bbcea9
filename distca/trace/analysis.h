#pragma once
// Where the time of traced steps went: per rank and step, in parts that add up to the step exactly,
// and what it was waiting for. docs/trace.md has the definitions. All times are whole nanoseconds.
// Any thread.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "distca/trace/chrome.h"

namespace distca {

/// What a rank's time in a step went to; each moment counts once, as the innermost event says.
enum class StepPart : uint8_t {
  kCompute,    // operations of the compute stream
  kCopy,       // packing and putting in place
  kIssue,      // handing messages to the group
  kGap,        // between events: what the program itself costs
  kImbalance,  // waiting for ranks that had not issued their side yet
  kExposed,    // waiting for an exchange's bytes: all had issued
  kSum,        // the same inside sums over all ranks, and what else the step gathers
  kOther,      // waiting for no rank: a plan that is not ready
};
inline constexpr int kNumStepParts = 8;
const char* step_part_name(StepPart part);

/// Nanoseconds by part.
struct StepParts {
  std::array<int64_t, kNumStepParts> ns{};

  int64_t of(StepPart part) const { return ns[static_cast<int>(part)]; }
  int64_t launch() const { return of(StepPart::kIssue) + of(StepPart::kGap); }
  /// Nothing to do: imbalance, exposed, sums, other.
  int64_t idle() const;
  int64_t total() const;
  StepParts& operator+=(const StepParts& other);
};

/// One step of one rank, or the sum of several.
struct RankStep {
  int64_t step = 0;
  StepParts parts;        // their total is the step's length
  int64_t hidden_ns = 0;  // an exchange was under way (at most) and the rank did not wait
  int64_t bytes = 0, received_bytes = 0;  // of exchanges and sums
  std::vector<int64_t> waited_for_ns;     // [ranks] imbalance by the rank that came last

  RankStep& operator+=(const RankStep& other);
};

/// Operations of one kind and pass, all layers and nano-batches, steps and ranks together.
struct OperationTimes {
  std::string name;  // "forward core_attention"
  int64_t count = 0;
  std::vector<int64_t> rank_ns;  // [ranks] without what lies inside them
  double flops = 0;
};

/// Waits for the exchanges of one kind, pass, layer and nano-batch, all steps and ranks together.
struct ExchangeTimes {
  std::string name;                 // "forward dispatch"
  int layer = -1, nano_batch = -1;  // -1: sums over ranks
  int64_t exposed_ns = 0, imbalance_ns = 0;
  int64_t bytes = 0;  // sent
};

struct TraceAnalysis {
  std::vector<std::vector<RankStep>> ranks;  // [ranks][steps], ascending step
  std::vector<RankStep> totals;              // [ranks]
  std::vector<OperationTimes> operations;    // longest first
  std::vector<ExchangeTimes> exchanges;      // most exposed first
  int64_t unmatched_waits =
      0;  // for messages whose issue the trace does not hold: counted as exposed
};

/// Events outside of every step are left out. Every rank must have the same steps, at least one:
/// Error(kData) with `name` else.
TraceAnalysis analyse(const Trace& trace, const std::string& name);

/// The name of an event without its layer and nano-batch: "forward core_attention".
std::string operation_name(const TraceEvent& event);

}  // namespace distca
