#include "distca/train/trainer.h"
#include "distca/train/start_weights.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <fmt/ranges.h>

#include <cmath>
#include <cstdio>
#include <optional>

#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/base/stop_signals.h"
#include "distca/base/text.h"
#include "distca/batch/data_blend.h"
#include "distca/checkpoint/reader.h"
#include "distca/comm/collectives.h"
#include "distca/comm/tags.h"
#include "distca/comm/traced.h"
#include "distca/cost/speed_meter.h"
#include "distca/runtime/memory_meter.h"
#include "distca/train/bandwidth.h"
#include "distca/train/checkpoint_saver.h"
#include "distca/train/compute_peak.h"
#include "distca/train/data_split.h"
#include "distca/train/memory_cap.h"
#include "distca/train/metrics.h"
#include "distca/train/plan_ahead.h"
#include "distca/train/plan_request.h"
#include "distca/train/resume.h"
#include "distca/train/run_faults.h"
#include "distca/train/run_grid.h"
#include "distca/train/run_output.h"
#include "distca/train/run_summary.h"
#include "distca/train/same_config.h"
#include "distca/train/same_weights.h"
#include "distca/train/speed_sample.h"
#include "distca/train/step.h"
#include "distca/train/step_batches.h"
#include "distca/train/step_guard.h"
#include "distca/train/step_tracer.h"
#include "distca/train/worker_weights.h"

namespace distca {
namespace {

/// What a rank tells the others of a step.
struct RankStep {
  double loss_sum = 0, grad_norm = 0;
  StepVerdict verdict;
  SaveReport save;
  int stop_signal = 0;  // that this rank was sent
  ExchangeBytes bytes;
  int64_t bytes_between_nodes = 0;
  double attention_s = 0;
  MemoryUse memory;
  RankSample sample;
};

class Trainer {
 public:
  Trainer(const Config& config, Communicator& comm, RunState& state, const RunStart& start)
      : memory_(comm.cuda_device()),
        config_(config),
        comm_(comm),
        state_(state),
        checkpoint_(start.checkpoint ? std::make_unique<CheckpointReader>(*start.checkpoint)
                                     : nullptr),
        first_step_(checkpoint_ ? checkpoint_->index().step + 1 : 1),
        run_id_(start.run_id),
        all_(comm, kTracedTags),
        num_workers_(comm.size() - static_cast<int>(config.servers.dedicated)),
        run_(run_grid(config, num_workers_)),
        data_(config.data.prefix),
        batches_(config, data_, first_step_),
        weights_(comm.rank() < num_workers_ ? std::make_unique<WorkerWeights>(config, comm, run_)
                                            : nullptr),
        guard_(config.train.spike_factor),
        step_(config.model, weights_ ? &weights_->model : nullptr, comm, step_options(config)),
        tracer_(config, comm, run_.grid, first_step_ - 1) {
    summary_.num_workers = num_workers_;
    summary_.goes_on_after = first_step_ - 1;
  }

  TrainEnd run() {
    comm_.set_step(first_step_ - 1);
    const std::vector<std::string> resumed = prepare();
    peak_ = measure_peak(config_, comm_);
    saver_.emplace(config_, std::move(facts_), run_id_, own_checkpoint_, comm_, run_);
    if (output_) begin_output(resumed);
    const auto plan_next = [this, rank = comm_.rank()](const Speeds& speeds) {
      const std::optional<StepBatch> batch = batches_.next();
      return batch ? std::optional(plan_batch(config_, data_, *batch, rank, num_workers_, speeds,
                                              weights_ ? weights_->gradients : nullptr))
                   : std::nullopt;
    };
    plan_ahead_.emplace(plan_next, speeds_at(first_step_));
    state_.begin_steps(first_step_ - 1, own_checkpoint_);
    for (int64_t step = first_step_; step <= config_.train.steps; ++step) {
      comm_.set_step(step);
      StepMetrics metrics = train_step(step);
      // Also after a skipped step: the validation batches are planned already.
      if (!ends_badly() && batches_.evaluates(step)) evaluate(&metrics);
      summary_.add(metrics);
      if (output_) output_->tell(metrics, resolved_);
      if (ends_badly()) end_badly(step);
      check_validation(metrics);
      const bool saved = !saves_after(step) || finish_save(step);
      if (stop_signal_ != 0) return stopped(step, saved);
    }
    if (weights_) drifted_ = others_with_other_weights("comparing the trained weights");
    if (weights_) trained_ = gather_trained_weights(*weights_, run_);
    // Nobody waits for rank 0 while it writes: that may take longer than a wait may.
    barrier(comm_, "end of training");
    if (output_) save();
    // Said when the weights are safe, and by rank 0 alone: an error of others would end it, too.
    if (comm_.rank() == 0 && summary_.last.validation_loss)
      check_last_validation(*summary_.last.validation_loss, config_);
    return {};
  }

 private:
  /// Compares ranks, reads the checkpoint, takes the folder. Gives what to say about going on.
  std::vector<std::string> prepare() {
    resolved_ = {
        .price = config_.attention_profile ? profile_name(*config_.attention_profile) : "pairs",
        .kernel = step_.kernel().name(),
        .data = data_.summary(),
        .isa = comm_.cuda_device() < 0 ? at::get_cpu_capability() : std::string(),
        .checkpoint = checkpoint_ ? checkpoint_words(checkpoint_->index()) : "none"};
    check_same_config(comm_, config_, resolved_);
    run_id_ = agreed_run_id(comm_, run_id_);
    facts_ = {.config = config_texts(config_),
              .machine = machine_texts(config_, resolved_, num_workers_),
              .data = resolved_.data};
    std::vector<std::string> words;
    if (checkpoint_) words = check_resume(checkpoint_->index(), facts_);
    if (const std::string none = tracer_.missing(); !none.empty()) words.push_back(none);
    if (weights_) {
      load_start_weights(checkpoint_.get(), config_, *weights_, &words);
      check_same_start(others_with_other_weights("comparing the initial weights"), run_,
                       checkpoint_ != nullptr);
    }
    if (checkpoint_ && is_own_checkpoint(checkpoint_->folder(), config_))
      own_checkpoint_ = first_step_ - 1;
    if (comm_.rank() == 0) {
      output_.emplace(config_, state_, files_beside_weights(data_), own_checkpoint_, first_step_);
    }
    if (measures_speeds(config_)) {
      meter_.emplace(comm_.size(),
                     config_.plan.tolerance.is_auto() ? measured_bytes_per_us(comm_) : 0);
    }
    if (checkpoint_) {
      restore_trainer();
      words.insert(words.begin(), fmt::format("going on after step {} from {}", first_step_ - 1,
                                              checkpoint_->folder().string()));
      checkpoint_.reset();
    }
    return words;
  }

  /// What does not belong to the weights.
  void restore_trainer() {
    const JsonField trainer(checkpoint_->index().trainer,
                            (checkpoint_->folder() / kIndexFile).string(), ErrorKind::kCheckpoint,
                            "trainer");
    guard_.restore(trainer["guard"]);
    skipped_in_row_ = trainer["skipped_in_row"].integer(0);
    batches_.restore(trainer);
    if (meter_ && trainer.has("speed_meter")) meter_->restore(trainer["speed_meter"].integers());
  }

  void begin_output(const std::vector<std::string>& resumed) {
    std::string text = start_text(config_, split_words(config_, data_, batches_.split()), run_,
                                  resolved_.kernel, peak_);
    for (const std::string& line : resumed) text += "\n" + line;
    output_->begin(text);
  }

  Speeds speeds_at(int64_t step) const { return meter_ ? meter_->speeds_at(step) : Speeds{}; }

  /// While `step` runs, or validation batches after it, what is planned is a batch of the next step
  /// or a validation one: with the next step's speeds, whether this step's times are known or not.
  PlannedBatch next_planned(int64_t step, ProgramRequest::Kind kind) {
    const double begin_s = steady_seconds();
    PlannedBatch planned = plan_ahead_->next(speeds_at(step + 1));
    if (TraceRecorder* recorder = tracer_.recorder()) {
      recorder->add({.kind = TraceKind::kWait,
                     .name = "plan",
                     .begin_s = begin_s,
                     .end_s = steady_seconds()});
    }
    DISTCA_CHECK(planned.kind == kind, "step {}: what was planned is of the other kind", step);
    check_same_plan(all_, planned.figures.hash);
    return planned;
  }

  bool skips() const { return config_.train.bad_step == Config::Train::BadStep::kSkip; }
  /// Whether the step ends the run: it did not reach the weights, and all ranks know it.
  bool ends_badly() const {
    return !verdict_.good() && !(skips() && skipped_in_row_ <= config_.train.max_skipped_steps);
  }

  [[noreturn]] void end_badly(int64_t step) {
    const std::string saved = save_before_bad_step(step);
    // Nobody ends the run before rank 0 has written the step's line.
    barrier(comm_, "end of a run that diverged");
    throw bad_step(config_, step, verdict_, skips() ? skipped_in_row_ - 1 : 0, saved);
  }

  /// The weights are still those of the step before. Gives what is to be said about them.
  std::string save_before_bad_step(int64_t step) {
    if (step == 1) return "";
    const uint8_t mine = !weights_ || num_not_finite(weights_->model.parameters()) == 0;
    if (std::ranges::count(all_gather(comm_, mine, "looking at the weights"), 0) > 0)
      return "; the weights are not finite either and are not saved";
    saver_->finish();  // perhaps it is being saved already
    if (!is_saved(step - 1)) {
      begin_save(step - 1, skipped_in_row_ - 1, /*beside=*/false);
      saver_->finish();
    }
    if (!is_saved(step - 1)) return "; the state before it could not be saved";
    return fmt::format("; the state after step {} is saved, --resume goes on from it", step - 1);
  }

  /// Whether this run's folder has the state after `step`, as rank 0 knows.
  bool is_saved(int64_t step) {
    return all_gather(comm_, saver_->last_complete(), "looking for the checkpoint")[0] == step;
  }

  /// All ranks have the same values and stop together; the last one waits (check_last_validation).
  void check_validation(const StepMetrics& m) {
    if (m.step == config_.train.steps || std::isfinite(m.validation_loss.value_or(0))) return;
    barrier(comm_, "end of a run that diverged");
    throw diverged(config_, fmt::format("step {}: the validation loss is", m.step));
  }

  /// Whether a checkpoint is made of the state after this step.
  bool saves_after(int64_t step) const { return stop_signal_ != 0 || saver_->is_due(step); }

  /// Starts to save the present state, after `step`. `beside`: training goes on meanwhile.
  void begin_save(int64_t step, int64_t skipped_in_row, bool beside) {
    Json trainer = {{"guard", guard_.state()},
                    {"skipped_in_row", skipped_in_row},
                    {"data", batches_.state_after(step)}};
    if (meter_) trainer["speed_meter"] = meter_->state();
    saver_->begin(step, std::move(trainer), weights_ ? &weights_->optimizer : nullptr, beside);
  }

  bool saves_beside(int64_t step) const {
    return config_.checkpoint.async && stop_signal_ == 0 && step != config_.train.steps;
  }

  /// After the step's line was written. Returns false if a save that had to end here failed.
  bool finish_save(int64_t step) { return saves_beside(step) || saver_->finish(); }

  TrainEnd stopped(int64_t step, bool saved) {
    const std::string name = signal_name(stop_signal_);
    DISTCA_THROW_IF(!saved, ErrorKind::kIo,
                    "stopped by {} after step {} of {}, and its checkpoint could not be saved",
                    name, step, config_.train.steps);
    if (!output_) return {.stopped_by = stop_signal_};  // rank 0 says it
    output_->finish_metrics();
    return {.stopped_by = stop_signal_,
            .words = fmt::format("stopped by {} after step {} of {}; saved, resume with the same "
                                 "command and --resume ({}/checkpoints)",
                                 name, step, config_.train.steps, config_.train.output_dir)};
  }

  OtherRanks others_with_other_weights(std::string_view operation) {
    return ranks_with_other_weights(weights_->all_workers, run_, config_.model,
                                    weights_->model.parameters(), operation);
  }

  /// From here on, events of this rank go to `recorder`; null: nowhere.
  void record_to(TraceRecorder* recorder) {
    step_.set_recorder(recorder);
    all_.set_recorder(recorder);
    if (weights_) weights_->set_recorder(recorder);
  }

  StepMetrics train_step(int64_t step) {
    tracer_.begin_step(step);
    record_to(tracer_.recorder());
    const Stopwatch watch;
    PlannedBatch planned = next_planned(step, ProgramRequest::Kind::kTrain);
    StepMetrics metrics{.step = step, .lr = learning_rate(config_, step - 1)};
    if (weights_) weights_->optimizer.zero_gradients();
    const auto targets = static_cast<double>(std::max<int64_t>(1, planned.figures.targets));
    verdict_ = {};
    const auto accepts = [&](const GradientSum& sum) {  // all workers know the same
      verdict_ = guard_.judge(sum.loss_sum / targets, sum.norm);
      if (verdict_.good()) guard_.accept(sum.loss_sum / targets, sum.norm);
      return verdict_.good();
    };
    const StepResult result =
        step_.train(planned.input, planned.figures.targets,
                    {.optimizer = weights_ ? &weights_->optimizer : nullptr,
                     .workers = weights_ ? &weights_->workers : nullptr,
                     .all_stages = weights_ ? weights_->all_stages() : nullptr,
                     .max_grad_norm = config_.optimizer.max_grad_norm,
                     .lr = metrics.lr,
                     .accepts = accepts});
    metrics.grad_norm = result.sum.norm;
    share(result, planned, &metrics);
    if (!ends_badly() && saves_after(step)) save_traced(step);
    metrics.checkpoint = saver_->figures();
    metrics.step_s = watch.seconds();
    tracer_.end_step();
    record_to(nullptr);
    metrics.plan = planned.figures;
    metrics.model_flops = config_.model.train_flops(metrics.plan.tokens, metrics.plan.pairs);
    metrics.peak_flops_per_s = peak_.flops_per_s;
    metrics.times = result.times;
    return metrics;
  }

  void save_traced(int64_t step) {
    const double begin_s = steady_seconds();
    begin_save(step, skipped_in_row_, saves_beside(step));
    if (TraceRecorder* recorder = tracer_.recorder()) {
      recorder->add({.kind = TraceKind::kWait,
                     .name = "checkpoint",
                     .begin_s = begin_s,
                     .end_s = steady_seconds()});
    }
  }

  /// What every rank has of the step, told to all.
  void share(const StepResult& mine, const PlannedBatch& planned, StepMetrics* metrics) {
    const RankSample work = planned.work[comm_.rank()];
    const RankStep own{
        .loss_sum = mine.loss_sum,
        .grad_norm = metrics->grad_norm,
        .verdict = verdict_,
        .save = saver_->report(),
        .stop_signal = state_.stop_requested(),
        .bytes = mine.bytes,
        .bytes_between_nodes = planned.bytes_between_nodes,
        .attention_s = config_.attention_has_one_thread()
                           ? mine.times.processor_of(OpKind::kCoreAttention)
                           : mine.times.of(OpKind::kCoreAttention),
        .memory = {.now_bytes = memory_.bytes(),
                   .peak_bytes = memory_.peak_bytes(),
                   .resident_bytes = resident_peak_bytes(),
                   .weight_copy_bytes = weights_ ? weights_->model.copy_bytes() : 0,
                   .optimizer_bytes = weights_ ? weights_->optimizer.state_bytes() : 0},
        .sample = rank_sample(mine.times, work.tokens, work.load)};
    double loss_sum = 0;
    std::vector<SaveReport> saves;
    const std::vector<RankStep> all = all_gather(all_, own, "loss sum");
    for (const RankStep& rank : all) {
      loss_sum += rank.loss_sum;
      metrics->bytes += rank.bytes;
      metrics->bytes_between_nodes += rank.bytes_between_nodes;
      metrics->attention_s.push_back(rank.attention_s);
      metrics->memory.push_back(rank.memory);
      metrics->ranks.push_back(rank.sample);
      saves.push_back(rank.save);
      stop_signal_ = std::max(stop_signal_, rank.stop_signal);
    }
    hear(all[0].verdict, saves, metrics);
    const int64_t targets = planned.figures.targets;
    metrics->loss = targets > 0 ? loss_sum / static_cast<double>(targets) : 0.0;
    metrics->grad_norm = all[0].grad_norm;  // dedicated servers have none
    // The same values on every rank: so are the speeds. The first step's plan rests on the
    // bandwidth, which nobody has recorded yet.
    if (meter_ && (meter_->add(metrics->step, metrics->ranks) || metrics->step == first_step_))
      metrics->speeds = meter_->speeds();
  }

  /// What rank 0 thinks of the step, which dedicated servers do not know, and how saves are going.
  void hear(const StepVerdict& verdict, const std::vector<SaveReport>& saves,
            StepMetrics* metrics) {
    verdict_ = verdict;
    skipped_in_row_ = verdict.good() ? 0 : skipped_in_row_ + 1;
    metrics->skipped = !verdict.good();
    saver_->heard(saves);
    if (output_) state_.checkpoint_complete(saver_->last_complete());
  }

  void evaluate(StepMetrics* metrics) {
    PositionLosses losses;
    for (size_t i = 0; i < batches_.num_validation(); ++i) {
      const PlannedBatch planned = next_planned(metrics->step, ProgramRequest::Kind::kEvaluate);
      // One after the other: how many are played together makes no difference to the bits.
      for (const PositionLosses& more : step_.evaluate(planned.input).losses) losses += more;
    }
    sum_over_ranks(comm_, losses);
    metrics->validation_loss = losses.mean();
    metrics->validation_by_position = losses.bands();
  }

  void save() {
    // No step has looked at what the last update made.
    if (const int64_t bad = num_not_finite(trained_); bad > 0) {
      throw diverged(config_,
                     fmt::format("the last update left {} weights that are", with_thousands(bad)));
    }
    output_->save_weights(trained_);
    output_->save_beside();
    summary_.trace = tracer_.write();
    summary_.metrics_missing = output_->finish_metrics();
    output_->end(summary_text(config_, data_, summary_));
    // The others have ended well and did not wait for this.
    check_same_end(drifted_, run_, config_);
  }

  MemoryMeter memory_;  // first: it counts what the others make
  const Config& config_;
  Communicator& comm_;
  RunState& state_;
  std::unique_ptr<CheckpointReader> checkpoint_;  // what the run goes on from, until it is read
  int64_t first_step_;
  int64_t own_checkpoint_ = 0;  // the step that the run goes on from, if it lies in its own folder
  std::string run_id_;
  TracedCommunicator all_;  // comm_, where a step's sums are traced
  int num_workers_;
  RunGrid run_;
  DataBlend data_;
  StepBatches batches_;
  std::unique_ptr<WorkerWeights> weights_;  // null on a dedicated server
  StepGuard guard_;
  StepVerdict verdict_;  // of the step under way
  int64_t skipped_in_row_ = 0;
  Step step_;
  ResolvedConfig resolved_;
  RunFacts facts_;
  StepTracer tracer_;
  std::optional<RunOutput> output_;  // of rank 0
  std::optional<CheckpointSaver> saver_;
  int stop_signal_ = 0;  // that a rank was sent
  RunSummary summary_;
  std::vector<at::Tensor> trained_;  // on rank 0, the weights at the end
  OtherRanks drifted_;               // ranks whose trained weights are not what they should be
  ComputePeak peak_;
  std::optional<SpeedMeter> meter_;      // where what is measured enters the plans
  std::optional<PlanAhead> plan_ahead_;  // last: its thread uses the others
};

}  // namespace

TrainEnd train(const Config& config, Communicator& comm, RunState& state, const RunStart& start) {
  // A setting of the calling thread (OpenMP): ranks that are threads set it each for themselves.
  at::set_num_threads(static_cast<int>(config.train.threads_per_rank));
  return Trainer(with_device_cap(config, comm, start.device_cap_bytes), comm, state, start).run();
}

}  // namespace distca
