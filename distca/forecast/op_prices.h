#pragma once
// The prices of a run's operations on a machine (cost/machine.h), for the player (sim/player.h).
//
//   const MachinePrices prices(config, machine, programs);
//   const TimedStep step = timed_step(programs, prices, wire_of(machine));
//
// Counts: phases at their measured times, or matrix products at a rate; core attention with all its
// tasks; what full recomputation computes again; the optimizer, sums of gradients, copies, issuing,
// and what messages take of a rank's core. Ignores: the embedding's rows where no phase was
// measured, messages within the loss where ranks divide the head. Any thread may ask.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "distca/config/config.h"
#include "distca/cost/machine.h"
#include "distca/program/program.h"
#include "distca/sim/prices.h"
#include "distca/sim/wire.h"

namespace distca {

/// The FLOPs of an operation with those that it computes again under train.recompute = full. Ranks
/// that divide layers gather what the projections have read, and compute gate and up again; the
/// projections only where Q and K are normed.
double computed_flops(const Config& config, const Op& op);

Wire wire_of(const Machine& machine);

/// The keys that decide how long phases take, with their values, as Machine::settings has them.
std::map<std::string, std::string> phase_settings(const Config& config);
/// The name of an operation's PhaseTimes. Backward that leaves gradients by matrices to a
/// kWeightGradient has times of its own.
std::string phase_name(const Op& op);
/// Throws Error(kConfig) if the machine's phases were measured with other settings, and names the
/// first; Error(kData) if it has times of a phase that no program has.
void check_measured(const Config& config, const Machine& machine);

class MachinePrices : public OpPrices {
 public:
  /// Borrows all but the configuration. The programs are those that will be played; they are looked
  /// through here, on up to so many threads, and not later. Throws as check_measured().
  MachinePrices(const Config& config, const Machine& machine, std::span<const Program> programs,
                int threads = 1);
  /// Makes a played rank compute at this share of the machine's rates, or at a lower one that it
  /// has already: phases of layers and core attention, not what waits for memory or the wire.
  void slow_down(int rank, double speed);
  /// The prices on a machine with other numbers, and the same profile, measured phases and slow
  /// ranks.
  MachinePrices on(const Machine& machine) const;
  int64_t compute_ps(int rank, const Op& op) const override;
  CommunicationPrice communication(int rank, const Op& op, const MessageList& sends,
                                   const MessageList& receives) const override;

 private:
  /// The number of the machine by which an operation is priced.
  enum class By : uint8_t { kLinear, kPhase, kAttention, kMemory, kCopies };
  struct Work {
    /// FLOPs, measured seconds, nanoseconds by the profile, bytes, or bytes that are packed.
    double amount = 0;
    double landed = 0;  // bytes
    By by = By::kLinear;
  };
  static std::vector<Work> works_of(const Config& config, const Machine& machine,
                                    const Program& program);
  const Work& work_of(int rank, const Op& op) const;
  double of(MachineNumber number) const { return machine_->of(number); }
  size_t program_of(int rank) const { return static_cast<size_t>(rank / step_); }

  const Machine* machine_;
  std::span<const Program> programs_;
  int step_ = 1;                                                 // from one played rank to the next
  std::vector<double> speeds_;                                   // [program]
  std::shared_ptr<const std::vector<std::vector<Work>>> works_;  // [program][operation]
};

}  // namespace distca
