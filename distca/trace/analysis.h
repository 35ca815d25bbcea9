#pragma once
// Says where the time of traced steps went. For each rank and step, the time is divided into parts
// whose sum is exactly the length of the step. For waits, it also says what was waited for.
// docs/trace.md has the definitions.
//
//     const TraceAnalysis analysis = analyse(read_trace("trace.json"), "trace.json");
//     const int64_t exposed_ns = analysis.totals[rank].parts.of(StepPart::kExposed);
//
// All times are whole nanoseconds. Any thread may call these functions.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "distca/trace/chrome.h"

namespace distca {

/// What a rank's time in a step went to. Each moment counts once, as the innermost event there.
enum class StepPart : uint8_t {
  kCompute,    // operations of the compute stream
  kCopy,       // packing messages and putting received rows in place
  kIssue,      // handing messages to the group
  kGap,        // between events: the cost of the program itself
  kImbalance,  // waiting for ranks that had not issued their side yet
  kExposed,    // waiting for the bytes of an exchange that all ranks had issued
  kSum,        // waiting inside sums over all ranks, and what else the step gathers
  kOther,      // waiting for no rank, but for a plan that is not ready
};
inline constexpr int kNumStepParts = 8;
/// The name of a part, as reports write it.
const char* step_part_name(StepPart part);

/// Nanoseconds of each part.
struct StepParts {
  std::array<int64_t, kNumStepParts> ns{};

  int64_t of(StepPart part) const { return ns[static_cast<int>(part)]; }
  /// Time for issuing messages and for the program itself.
  int64_t launch() const { return of(StepPart::kIssue) + of(StepPart::kGap); }
  /// Time in which the rank had nothing to do: imbalance, exposed, sums, other.
  int64_t idle() const;
  /// The sum of all parts.
  int64_t total() const;
  StepParts& operator+=(const StepParts& other);
};

/// One step of one rank, or the sum of several.
struct RankStep {
  int64_t step = 0;
  StepParts parts;  // their total is the step's length
  /// Time in which an exchange was under way and the rank did not wait. It is an upper bound,
  /// because an exchange may have ended before its wait did.
  int64_t hidden_ns = 0;
  int64_t bytes = 0, received_bytes = 0;  // of exchanges and sums
  /// [ranks] how much of kImbalance was spent waiting for each rank, where it came last.
  std::vector<int64_t> waited_for_ns;

  RankStep& operator+=(const RankStep& other);
};

/// All operations of one kind and pass: of all layers, nano-batches, steps and ranks together.
struct OperationTimes {
  std::string name;  // "forward core_attention"
  int64_t count = 0;
  std::vector<int64_t> rank_ns;  // [ranks] without the time of events inside them
  double flops = 0;
};

/// All waits for exchanges of one kind, pass, layer and nano-batch: of all steps and ranks
/// together.
struct ExchangeTimes {
  std::string name;                 // "forward dispatch"
  int layer = -1, nano_batch = -1;  // -1: sums over ranks
  int64_t exposed_ns = 0, imbalance_ns = 0;
  int64_t bytes = 0;  // sent
};

/// The result for a whole trace.
struct TraceAnalysis {
  std::vector<std::vector<RankStep>> ranks;  // [ranks][steps], ascending step
  std::vector<RankStep> totals;              // [ranks] sums over steps
  std::vector<OperationTimes> operations;    // longest first
  std::vector<ExchangeTimes> exchanges;      // most exposed first
  /// How many waits were for messages whose issue the trace does not hold. They count as exposed.
  int64_t unmatched_waits =
      0;  // for messages whose issue the trace does not hold: counted as exposed
};

/// Analyses a trace. Events outside of every step are left out. Throws Error(kData) with `name`
/// unless every rank has the same steps, at least one.
TraceAnalysis analyse(const Trace& trace, const std::string& name);

/// The name of an event without its layer and nano-batch, for example "forward core_attention".
std::string operation_name(const TraceEvent& event);

}  // namespace distca
