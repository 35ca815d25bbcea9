#pragma once
// Saves checkpoints while training goes on. Every worker writes the pieces that it owns; rank 0
// then writes the index and gives the checkpoint its name (checkpoint/folder.h).
//
//     saver.begin(step, trainer, &optimizer, /*beside=*/true);  // copies, starts to write
//     // ... the next steps; each shares what every rank reports ...
//     saver.on_reports(all_gather(comm, saver.report(), ...));
//     saver.finish();  // at the end: waits until it is complete
//
// A save that fails costs nothing but itself: the rank that could not write says why, all ranks
// forget the save together, and the next one is tried as if nothing had been.
//
// Thread rule: one thread a rank; all ranks, dedicated servers too, make the same calls in the same
// order. A thread of the saver's own writes, at a lower priority than training.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/checkpoint/index.h"
#include "distca/comm/communicator.h"
#include "distca/config/config.h"
#include "distca/config/run_grid.h"
#include "distca/report/metrics.h"
#include "distca/train/optimizer.h"
#include "distca/train/resume.h"

namespace distca {

/// The state of a rank's part of the save that is under way, which it reports to the others. Where
/// there is nothing to write, it is written.
enum class SaveReport : int32_t { kWritten, kWriting, kFailed };

class CheckpointSaver {
 public:
  /// The ranks of `run` that hold weights write. `own_checkpoint` is the step that the run goes on
  /// from, if that checkpoint lies in the run's own folder; else 0. If some of them do not see the
  /// folder that rank 0 has taken, rank 0 writes all pieces alone; under ZeRO-1 and in a pipeline
  /// it does not have them, which is Error(kConfig). All ranks call it together, after rank 0 has
  /// taken the folder.
  CheckpointSaver(const Config& config, RunFacts facts, std::string run_id, int64_t own_checkpoint,
                  Communicator& comm, const RunGrid& run);
  /// Waits until this rank has stopped writing and, unless an exception ends it, removing older
  /// checkpoints, at most checkpoint.grace_s each.
  ~CheckpointSaver();

  /// Returns true if the configuration wants the state after this step saved.
  bool is_due(int64_t step) const;
  /// Starts to save the state after `step`. `trainer` is what the trainer keeps in addition to the
  /// weights. `optimizer` is null on a dedicated server. If `beside`, the state may change while it
  /// is written, so it is copied first, which needs checkpoint.async and checkpoint.every_steps;
  /// otherwise the caller calls finish() before it changes the state. If the save before is not
  /// complete yet, waits for it first. If `before_bad_step`, the state is saved as evidence, which
  /// counts for nothing that is kept, and removes nothing (checkpoint/folder.h). Weights that are
  /// not finite fail the save.
  void begin(int64_t step, Json trainer, Optimizer* optimizer, bool beside,
             bool before_bad_step = false);
  /// The last save shall remove no older checkpoint, as its state may be spoilt.
  void keep_older() {
    removes_older_ = false;
    removes_before_ = 0;
  }
  /// States up to that after `step` are good: a later step or a validation has computed with them.
  /// A checkpoint removes older ones when it is complete and its state is known to be good.
  void good_until(int64_t step) {
    good_until_ = std::max(good_until_, step);
    remove_older();
  }
  /// Returns the state of this rank's part of the save. Each rank passes the reports of all ranks
  /// to on_reports().
  SaveReport report();
  /// Takes what all ranks have reported, in rank order.
  void on_reports(const std::vector<SaveReport>& all);
  /// Waits for the save that is under way, if there is one. Returns true if it succeeded; on ranks
  /// other than 0, true means only that all pieces were written. Throws Error(kIo) if it takes
  /// longer than checkpoint.grace_s.
  bool finish();

  /// The step of the last complete checkpoint in the run's folder. 0 means that there is none. The
  /// value is right on rank 0 only.
  int64_t last_complete() const { return figures_.last_complete; }
  /// Seconds from the begin of the last save that was completed until training knew it. It is 0
  /// before there is one, and right on rank 0 only.
  double last_save_s() const { return last_save_s_; }
  /// Returns the figures for the line of a step; the time for which training was held up is counted
  /// anew from here on. The last complete checkpoint is right on rank 0 only.
  CheckpointFigures figures();

 private:
  bool under_way() const { return head_.step != 0; }
  bool writes() const { return comm_.rank() < writers_.num_workers(); }
  void start_writing(Optimizer& optimizer, bool beside);
  void start_ending();
  void look_at_completion();
  void remove_older();
  void remove(std::function<void()> work);
  std::chrono::duration<double> grace() const;
  Error too_slow(int64_t step, const std::string& what);

  const Config& config_;
  const RunFacts facts_;
  const std::string run_id_;
  Communicator& comm_;
  std::filesystem::path run_;
  RunGrid writers_;       // the run or, where rank 0 writes alone, as if it were the only worker
  CheckpointIndex head_;  // index of the save that is under way; its step is 0 if none is
  bool before_bad_step_ = false, removes_older_ = true;  // begin() and keep_older() set them
  int64_t good_until_ = 0;      // the last step whose state is known to be good
  int64_t removes_before_ = 0;  // on rank 0: the step of a complete checkpoint of which it is not
                                // known yet whether it may remove older ones, or 0
  bool said_failed_ = false;
  bool hangs_ = false;  // work on a save did not end in time, so nobody waits for it any more
  CheckpointFigures figures_;
  Stopwatch since_begin_;
  double last_save_s_ = 0;
  std::unique_ptr<at::Tensor> copy_;     // all pieces of this rank, end to end, which are
                                         // written while training goes on
  std::future<std::string> writing_;     // "" or why it failed
  std::future<std::string> completing_;  // on rank 0
  int64_t completing_step_ = 0;
  bool gives_up_ = false;              // the save has failed: it makes way
  std::future<std::string> removing_;  // on rank 0, what no one needs any longer
};

/// Reads what this rank updates of the weights of its stage, and AdamW's state of it, from a
/// checkpoint, whoever has written it; Optimizer::gather_weights() brings the rest of the weights.
/// Throws Error(kCheckpoint).
void load_checkpoint(const CheckpointReader& reader, const LlamaConfig& model, const Stage& stage,
                     Optimizer& optimizer);

}  // namespace distca
