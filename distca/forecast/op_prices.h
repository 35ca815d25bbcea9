#pragma once
// The prices of a run's operations on a machine (cost/machine.h), for the player (sim/player.h).
//
//   const MachinePrices prices(config, machine, programs);
//   const TimedStep step = timed_step(programs, prices, wire_of(machine));
//
// Counts: matrix products and core attention with all its tasks, what full recomputation computes
// again, the optimizer, sums of gradients, copies, issuing. Ignores: the embedding's rows, norms
// (kLinearTflops has them), messages within the loss where ranks divide the head, the norm of
// gradients. Any thread may ask.

#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <unordered_map>

#include "distca/config/config.h"
#include "distca/cost/machine.h"
#include "distca/cost/task_price.h"
#include "distca/program/program.h"
#include "distca/sim/prices.h"
#include "distca/sim/wire.h"

namespace distca {

/// The FLOPs of an operation with those that it computes again under train.recompute = full. Ranks
/// that divide layers gather what the projections have read, and compute gate and up again; the
/// projections only where Q and K are normed.
double computed_flops(const Config& config, const Op& op);

Wire wire_of(const Machine& machine);

class MachinePrices : public OpPrices {
 public:
  /// Borrows all three. The programs are those that will be played.
  MachinePrices(const Config& config, const Machine& machine, std::span<const Program> programs);
  /// From here on the numbers of another machine, which has the same profile of core attention.
  void use(const Machine& machine) { machine_ = &machine; }
  int64_t compute_ps(int rank, const Op& op) const override;
  CommunicationPrice communication(int rank, const Op& op, const MessageList& sends,
                                   const MessageList& receives) const override;

 private:
  using Tasks = std::tuple<const AttentionExchange*, Pass, int, int>;  // exchange, pass, set, part
  void add_tasks(const Program& program, const Op& op);
  int64_t attention_ps(const Program& program, const Op& op) const;
  int64_t weights_ps(const Program& program, const Op& op) const;
  double of(MachineNumber number) const { return machine_->of(number); }

  const Config& config_;
  const Machine* machine_;
  std::unordered_map<int, const Program*> programs_;  // [rank]
  std::map<Tasks, int64_t> task_ns_;                  // nanoseconds by the profile
};

}  // namespace distca
