#pragma once
// A machine, as a step is predicted on it: numbers, each with where it is from, and a profile of
// core attention. docs/simulator.md describes the file.
//
//   const Machine machine = machine_by_name("h200");
//   const double rate = machine.of(MachineNumber::kLinearTflops);
//
// A machine is a plain value, which any thread may read.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "distca/cost/attention_profile.h"

namespace distca {

enum class MachineNumber : uint8_t {
  kPeakTflops,       // dense matrix products in the type that phases compute in: share of peak only
  kLinearTflops,     // phases of layers, embedding and head, norms included
  kAttentionRate,    // core attention, as a multiple of the profile's rate
  kAttentionCallUs,  // each call of core attention, besides its tasks
  kMemoryGbPerS,     // the optimizer and sums of gradients
  kCopyGbPerS,       // packing what is sent, putting in place what has arrived
  kIssueUs,          // the thread's time for each communication
  kInsideGbPerS,     // a rank's rate to ranks of its node, each direction
  kInsideLatencyUs,  // each message there
  kBetweenGbPerS,    // a rank's rate to ranks of other nodes, likewise
  kBetweenLatencyUs,  // each message there
  kRanksPerNode,
  kInOrder,    // 1 if a rank's communications end one after another, as with NCCL, else 0
  kMemoryGib,  // that tensors of a rank may take
};
inline constexpr int kNumMachineNumbers = static_cast<int>(MachineNumber::kMemoryGib) + 1;

/// The key of a number in the file, with its unit: "linear_tflops".
const char* machine_number_name(MachineNumber number);

struct Machine {
  struct Number {
    double value = 0;
    std::string source;  // "measured ...", "stated: ..." or "assumed: ..."
  };
  std::string name;
  std::shared_ptr<const AttentionProfile> attention;
  std::array<Number, kNumMachineNumbers> numbers;

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
