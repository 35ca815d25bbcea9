#pragma once
// Plans batches ahead of their use. While a step runs, a thread of PlanAhead makes and checks the
// plans of the next batch and this rank's program for it, and reads this rank's tokens. That thread
// makes no call of PyTorch.
//
//     PlanAhead ahead([&](const Speeds& speeds) {
//       return plan_batch(config, data, next_batch(), rank, num_workers, speeds, gradients);
//     });
//     const PlannedBatch planned = ahead.next();

#include <cstdint>
#include <functional>
#include <future>
#include <optional>

#include "distca/batch/batch_stream.h"
#include "distca/batch/data_blend.h"
#include "distca/config/config.h"
#include "distca/cost/speed_meter.h"
#include "distca/forecast/plan_figures.h"
#include "distca/train/step.h"

namespace distca {

/// A batch, and whether it is for training or evaluation.
struct StepBatch {
  Batch batch;
  ProgramRequest::Kind kind = ProgramRequest::Kind::kTrain;
  /// True if the programs of all ranks are validated together, instead of this rank's alone. The
  /// trainer sets it for the first step only, because it takes longer.
  bool checks_all_ranks = false;
};

/// A batch as one rank runs it: the rank's program and tokens, and the figures of the plans.
struct PlannedBatch {
  ProgramRequest::Kind kind = ProgramRequest::Kind::kTrain;
  StepInput input;      // the program, and this rank's tokens
  RankSample work;      // tokens and load of the rank's server, of all nano-batches, without times
  PlanFigures figures;  // for metrics.jsonl
  /// Counts of this rank's tokens (LocalTokens). Ranks of later stages, and all but the first of a
  /// server, hold tokens that others count.
  int64_t bad_tokens = 0, targets_left_out = 0;
  /// Bytes that this rank sends to other nodes. It is 0 if cluster.ranks_per_node is not given.
  int64_t bytes_between_nodes = 0;
};

/// Plans every nano-batch of a batch and reads the tokens of `rank`; a dedicated server has none.
/// `gradients` is the rank's exchange of gradients, the same value that its optimizer has. If it is
/// null, one is made as the configuration gives it, for a program that is only looked at. `speeds`
/// are recorded values, the same on every rank, if measures_speeds(config). Throws Error(kPlan,
/// kData). A plan or program that its validator refuses is a CHECK. Any thread may call it.
PlannedBatch plan_batch(const Config& config, const DataBlend& data, const StepBatch& batch,
                        int rank, int num_workers, const Speeds& speeds = {},
                        std::shared_ptr<const GradientExchange> gradients = nullptr);

/// Keeps one batch planned ahead. Its destructor waits for the batch that is being planned, and
/// leaves no thread behind. Thread rule: one thread uses the object.
class PlanAhead {
 public:
  /// Plans the next batch, in the order of their use, with these speeds. Returns nothing after the
  /// last batch. It is called on the planning thread, one call at a time, and never after the end
  /// of the PlanAhead.
  using PlanNext = std::function<std::optional<PlannedBatch>(const Speeds&)>;

  /// Starts planning the first batch. Throws Error(kIo) if the system refuses a thread.
  explicit PlanAhead(PlanNext plan_next, Speeds speeds = {});
  PlanAhead(const PlanAhead&) = delete;
  PlanAhead& operator=(const PlanAhead&) = delete;

  /// Waits for the next batch, which must exist, and starts planning the one after it with
  /// `speeds`. Throws whatever was thrown on the planning thread.
  PlannedBatch next(Speeds speeds = {});

 private:
  void start(Speeds speeds);

  PlanNext plan_next_;
  std::future<std::optional<PlannedBatch>> pending_;  // waits for its thread when destroyed
};

}  // namespace distca
