#pragma once
// The planned batches of a rank, each of which all ranks have planned alike, or none has: every
// rank plans for itself, and before a plan is used, the ranks compare its hash, or get the reason
// why there is none.
//
//     AgreedPlans plans(plan_next, speeds, comm);
//     const std::optional<PlannedBatch> planned = plans.next(kind, speeds);
//     if (!planned) end_because_of(*plans.failure());
//
// Thread rule: one thread; all ranks make the same calls in the same order.

#include <cstdint>
#include <functional>
#include <optional>

#include "distca/base/error.h"
#include "distca/comm/communicator.h"
#include "distca/train/plan_ahead.h"

namespace distca {

/// One rank's facts on the plans of a batch, which all ranks exchange.
struct PlanWord {
  uint64_t hash = 0;  // hash of the plans
  int64_t bad_tokens = 0, targets_left_out = 0;
  int64_t stop_signal = 0;  // by which the rank was asked to stop, or 0
};

/// Exchanges the words of all ranks, which call it together. Returns the sums of the counts and the
/// largest signal, which is 0 if there is a failure. It is a CHECK that all have the same hash. If
/// a rank has a `failure` in place of a plan, all get the failure of the first such rank instead.
PlanWord compare_plans(Communicator& comm, const PlanWord& mine, std::optional<Error>* failure);

class AgreedPlans {
 public:
  /// Starts planning the first batch, as PlanAhead does. The ranks compare their plans through
  /// `comm`, which it borrows.
  AgreedPlans(PlanAhead::PlanNext plan_next, Speeds speeds, Communicator& comm)
      : comm_(comm), plan_next_(std::move(plan_next)) {
    ahead_.emplace(plan_next_, std::move(speeds));
  }

  /// The next batch, which is of this kind (CHECK), as PlanAhead gives it, with what only all ranks
  /// together know of it. Nothing if a rank has failed: then failure() says why, on all ranks. Also
  /// nothing if a rank gives the `stop_signal` by which it was asked to stop: then all know it.
  std::optional<PlannedBatch> next(ProgramRequest::Kind kind, Speeds speeds, int stop_signal = 0);

  /// Forgets what is planned and was not given out. `change` decides what comes in its place; it is
  /// called while nobody plans.
  void restart(const std::function<void()>& change, Speeds speeds);

  /// This rank has failed in something else, which next() reports to the others.
  void fail(const Error& error) { failure_ = error; }
  const std::optional<Error>& failure() const { return failure_; }
  /// The signal of any rank in the last next(), or 0.
  int stop_signal() const { return stop_signal_; }

 private:
  Communicator& comm_;
  PlanAhead::PlanNext plan_next_;
  std::optional<Error> failure_;
  int stop_signal_ = 0;
  std::optional<PlanAhead> ahead_;  // last: its thread may use what the caller gave
};

}  // namespace distca
