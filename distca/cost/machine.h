#pragma once
// A machine, as a step is predicted on it: numbers, each with where it is from, a profile of core
// attention and, where they were measured, times of the other phases. docs/simulator.md describes
// the file.
//
//   const Machine machine = machine_by_name("h200");
//   const double rate = machine.of(MachineNumber::kLinearTflops);
//
// A machine is a plain value, which any thread may read.

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "distca/cost/attention_profile.h"
#include "distca/cost/pass.h"

namespace distca {

enum class MachineNumber : uint8_t {
  kPeakTflops,       // dense matrix products in the type that phases compute in: share of peak only
  kLinearTflops,     // phases of layers, embedding and head without measured times
  kPhaseRate,        // phases with measured times, as a multiple of their rate
  kAttentionRate,    // core attention, as a multiple of the profile's rate
  kAttentionCallUs,  // each call of core attention, besides its tasks
  kMemoryGbPerS,     // the optimizer and sums of gradients
  kCopyGbPerS,       // packing what is sent, putting in place what has arrived
  kIssueUs,          // the thread's time for each communication
  kIssueGbPerS,      // and for so many GB that it sends, another second of it; with 0, nothing
  kCoreGbPerS,       // messages take a second of a rank's core for so many GB; with 0, nothing
  kStepUs,           // each step, besides its operations
  kInsideGbPerS,     // a rank's rate to ranks of its node, each direction
  kInsideLatencyUs,  // each message there
  kBetweenGbPerS,    // a rank's rate to ranks of other nodes, likewise
  kBetweenLatencyUs,  // each message there
  kBurstKib,          // that goes through a port at once after it has been idle
  kRanksPerNode,
  kInOrder,    // 1 if a rank's communications end one after another, as with NCCL, else 0
  kMemoryGib,  // that tensors of a rank may take
};
inline constexpr int kNumMachineNumbers = static_cast<int>(MachineNumber::kMemoryGib) + 1;

/// The key of a number in the file, with its unit: "linear_tflops".
const char* machine_number_name(MachineNumber number);

/// Measured times of the operations of one kind and pass, of a layer and a nano-batch on a rank.
struct PhaseTimes {
  std::string phase;  // its name in programs, such as "pre_attention"
  Pass pass = Pass::kForward;
  int64_t flops_per_token = 0;       // counted as in programs; 0 for the embedding
  std::vector<int64_t> tokens = {};  // tokens of the rank in a nano-batch; ascending, two or more
  std::vector<int64_t> ns = {};      // [tokens] nanoseconds, above 0

  /// The seconds of an operation for so many tokens: on the line through the two nearest counts.
  /// Below the first count, they are at most in proportion to the tokens where that line would fall
  /// below 0 at no tokens. Beyond the first and the last count, more tokens never take less.
  double seconds(int64_t num_tokens) const;
  bool operator==(const PhaseTimes&) const = default;
};

struct Machine {
  struct Number {
    double value = 0;
    std::string source;  // "measured ...", "stated: ..." or "assumed: ..."
  };
  std::string name;
  std::shared_ptr<const AttentionProfile> attention;
  std::array<Number, kNumMachineNumbers> numbers = {};
  /// Times that were measured. They hold for the settings that they were measured with, each a key
  /// of a configuration and its value: "model.hidden_size", "512". Both are empty for a machine
  /// that is only stated.
  std::vector<PhaseTimes> phases = {};
  std::map<std::string, std::string> settings = {};
  /// A step that was predicted by these prices and measured with them. Both are 0 if none was.
  struct Check {
    double predicted_s = 0, measured_s = 0;
    /// Relative to the measured time.
    double error() const { return predicted_s / measured_s - 1; }
  } check = {};

  double of(MachineNumber number) const { return numbers[static_cast<size_t>(number)].value; }
  Number& at(MachineNumber number) { return numbers[static_cast<size_t>(number)]; }
};

/// The machines that need no file: "h100" and "h200", stated and assumed, not measured.
const std::vector<std::string>& known_machines();
/// A known machine, or the file of one. Throws Error(kData), as machine_from_json() does; for a
/// file that does not exist, it names the known machines.
Machine machine_by_name(const std::string& name);

/// Canonical JSON: the same value gives the same bytes.
std::string machine_to_json(const Machine& machine);
/// Throws Error(kData) that names `name` (the file) and the first field that is missing or wrong.
Machine machine_from_json(std::string_view json, std::string_view name);

}  // namespace distca
