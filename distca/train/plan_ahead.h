#pragma once
// Plans batches ahead of their use: while a step runs, a thread of its own makes and checks the
// plans of the next batch and this rank's program for it, and reads this rank's tokens. No torch
// call is made there.

#include <cstdint>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "distca/batch/batch_stream.h"
#include "distca/batch/indexed_dataset.h"
#include "distca/cost/speed_meter.h"
#include "distca/train/config.h"
#include "distca/train/plan_figures.h"
#include "distca/train/step.h"

namespace distca {

/// A batch and what it is for.
struct StepBatch {
  Batch batch;
  ProgramRequest::Kind kind = ProgramRequest::Kind::kTrain;
  bool checks_all_ranks = false;  // the programs of all ranks together, not this rank's alone
};

/// A batch, planned.
struct PlannedBatch {
  StepInput input;
  uint64_t hash = 0;             // of the plans; ranks compare it before use
  std::vector<RankSample> work;  // [ranks] tokens and load of all nano-batches; no times
  PlanFigures figures;
};

/// Plans every nano-batch of a batch and loads the tokens of `rank`, a dedicated server's none.
/// `speeds`: recorded ones (measures_speeds), the same on every rank.
/// Throws Error(kPlan, kData); a plan or program that its validator refuses is a CHECK. Any thread.
PlannedBatch plan_batch(const Config& config, const IndexedDataset& data, const StepBatch& batch,
                        int rank, int num_workers, const Speeds& speeds = {});

/// Thread rule: one thread. Destroying it waits for what is being planned; no thread is left.
class PlanAhead {
 public:
  /// The batches in the order of their use; none: no more. Called on the planning thread, one call
  /// at a time, and never after the PlanAhead.
  using NextBatch = std::function<std::optional<StepBatch>()>;
  using PlanBatch = std::function<PlannedBatch(const StepBatch&, const Speeds&)>;

  /// Starts with the first batch. Throws Error(kIo) if the system refuses a thread.
  PlanAhead(NextBatch next_batch, PlanBatch plan, Speeds speeds = {});
  PlanAhead(const PlanAhead&) = delete;
  PlanAhead& operator=(const PlanAhead&) = delete;

  /// Waits for the next batch and starts planning the one after it, with these speeds. There must
  /// be one. Rethrows what went wrong on the planning thread.
  PlannedBatch next(Speeds speeds = {});

 private:
  void start(Speeds speeds);

  NextBatch next_batch_;
  PlanBatch plan_;
  std::future<std::optional<PlannedBatch>> pending_;  // joins when destroyed
};

}  // namespace distca
