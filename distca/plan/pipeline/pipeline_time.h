#pragma once
// The predicted times of a pipeline's ticks, compared with the times that they would take if
// attention could go anywhere for nothing.
//
//   for (const TickFigures& tick : tick_figures(request, make_pipeline_plan(request)))
//     fmt::print("{} of {} stages {:.3f}\n", tick.working, request.grid.stages, tick.over_ideal());
//
// For tables, metrics and tests. Any thread may call the functions.

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "distca/plan/pipeline/pipeline_plan.h"

namespace distca {

/// One slot of a tick under a plan, all layer steps together.
struct SlotTime {
  int64_t compute_ps = 0;   // TickFigures::planned_ps of this slot alone
  int64_t exchange_ps = 0;  // time of the rank whose messages take longest; 0 without a bandwidth
  /// The time of what the slot must do in turn: the longest linear work but for weight gradients
  /// that were left, the exchanges, the longest attention.
  int64_t chain_ps = 0;
  int64_t partner_ps = 0;  // the least length of the tick's other slot; 0 if there is none

  bool is_hidden() const { return total_ps() <= compute_ps; }
  /// The slot's part of the tick, in which the chain of the slot must end. So an idle stage that
  /// computes attention all the time leaves messages only the time in which stages at work have
  /// attention, too.
  int64_t total_ps() const { return std::max(compute_ps, chain_ps - partner_ps); }
};

/// `plan` is that of the slot, `nano_batches` [stages] are those in it. All speeds must be known
/// (CHECK). Counts in exchange_ps: Q, K, V and O forward; dO, Q, K, V again and their gradients
/// backward; all at request.bytes_per_us. Ignores: LSE, delta, latencies.
SlotTime slot_time(const PipelineRequest& request, const Plan& plan,
                   std::span<const int> nano_batches, Pass pass, const OtherWork& other_work = {});

/// One tick, all slots together. Bytes are those of forward of one layer step, without LSE.
struct TickFigures {
  Pass pass = Pass::kForward;
  int working = 0;             // stages that have a micro-batch
  int64_t load = 0;            // load of all servers in one layer step: pairs, or ns of the profile
  double max_over_share = 1;   // the highest of the slots' plans
  int64_t bytes = 0;           // Q, K, V, O that all ranks send
  int64_t max_send_bytes = 0;  // Q, K, V that one rank sends for one slot: the largest
  int64_t planned_ps = 0;      // predicted length, see tick_figures
  int64_t ideal_ps = 0;        // the least possible length, see tick_figures
  int64_t exchange_ps = 0;     // SlotTime's, of all slots
  int64_t exposed_ps = 0;      // by which exchanges make the tick longer than planned_ps

  double over_ideal() const {
    return ideal_ps > 0 ? static_cast<double>(planned_ps) / static_cast<double>(ideal_ps) : 1;
  }
};

/// [ticks] `plan` is that of the request. All speeds must be known (CHECK).
/// The length of a tick is that of all its layer steps. With BalanceTarget::kWhole it is the time
/// of the slowest rank: its linear work, by the tokens that it holds, and its attention, by its
/// load, in all slots. With kAttention ranks meet before and after core attention, so it is the
/// longest linear work and the longest attention, slot after slot. The least length is that with
/// which the attention of each slot is divided as one likes (cost/finish_time.h): with n stages at
/// work for l each and attention A of one replica, max(l, (n l + A) / P') with kWhole and l + A /
/// P' with kAttention, where P' is the number of servers over that of replicas. Counts: linear
/// work, embedding, head and loss, and core attention. Ignores: exchanges, packing.
std::vector<TickFigures> tick_figures(const PipelineRequest& request, const PipelinePlan& plan);

}  // namespace distca
