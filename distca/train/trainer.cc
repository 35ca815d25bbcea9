#include "distca/train/trainer.h"
#include "distca/train/start_weights.h"

#include <ATen/Parallel.h>

#include <cmath>
#include <optional>

#include "distca/base/clock.h"
#include "distca/base/console.h"
#include "distca/base/error.h"
#include "distca/base/stop_signals.h"
#include "distca/batch/data_blend.h"
#include "distca/checkpoint/folder.h"
#include "distca/checkpoint/reader.h"
#include "distca/comm/collectives.h"
#include "distca/comm/long_work.h"
#include "distca/comm/tags.h"
#include "distca/comm/traced.h"
#include "distca/config/run_grid.h"
#include "distca/cost/speed_meter.h"
#include "distca/forecast/data_split.h"
#include "distca/forecast/plan_request.h"
#include "distca/report/metrics.h"
#include "distca/report/run_output.h"
#include "distca/report/run_summary.h"
#include "distca/runtime/memory_meter.h"
#include "distca/train/agreed_plans.h"
#include "distca/train/bandwidth.h"
#include "distca/train/check_run.h"
#include "distca/train/checkpoint_saver.h"
#include "distca/train/compute_peak.h"
#include "distca/train/evaluate.h"
#include "distca/train/exit_time.h"
#include "distca/train/last_save.h"
#include "distca/train/lr_schedule.h"
#include "distca/train/rank_step.h"
#include "distca/train/resume.h"
#include "distca/train/run_faults.h"
#include "distca/train/same_config.h"
#include "distca/train/same_weights.h"
#include "distca/train/step.h"
#include "distca/train/step_batches.h"
#include "distca/train/step_guard.h"
#include "distca/train/step_tracer.h"
#include "distca/train/worker_weights.h"

namespace distca {
namespace {

class Trainer {
 public:
  /// `checkpoint` is the one that the run goes on from. It is null in a new run.
  Trainer(const Config& config, Communicator& comm, RunState& state, const RunStart& start,
          std::unique_ptr<CheckpointReader> checkpoint)
      : memory_(comm.cuda_device()),
        config_(config),
        comm_(comm),
        state_(state),
        checkpoint_(std::move(checkpoint)),
        goes_on_from_(checkpoint_ ? checkpoint_->folder() : std::filesystem::path()),
        first_step_(checkpoint_ ? checkpoint_->index().step + 1 : 1),
        run_id_(start.run_id),
        all_(comm, kTracedTags),
        num_workers_(comm.size() - static_cast<int>(config.servers.dedicated)),
        run_(run_grid(config, num_workers_)),
        data_(config.data.prefix),
        batches_(config, data_, first_step_),
        weights_(comm.rank() < num_workers_ ? std::make_unique<WorkerWeights>(config, comm, run_)
                                            : nullptr),
        exit_time_(config, start.begin_s, batches_.num_validation() > 0, num_workers_),
        guard_(config.train.spike_factor),
        step_(config.model, weights_ ? &weights_->model : nullptr, comm, step_options(config)),
        tracer_(config, comm, run_, first_step_ - 1) {
    summary_.num_workers = run_.grid.num_workers();
    summary_.ranks_of_server = run_.tensor;
    summary_.goes_on_after = first_step_ - 1;
  }

  TrainEnd run() {
    comm_.set_step(first_step_ - 1);
    const std::vector<std::string> resumed = prepare();
    peak_ = measure_peak(config_, comm_);
    saver_.emplace(config_, std::move(facts_), run_id_, own_checkpoint_, comm_, run_);
    do_on_rank_0(comm_, config_.comm.timeout_s, "beginning the run",
                 [&] { begin_output(resumed); });
    const auto plan_next = [this, rank = comm_.rank()](const Speeds& speeds) {
      const std::optional<StepBatch> batch = batches_.next();
      return batch ? std::optional(plan_batch(config_, data_, *batch, rank, num_workers_, speeds,
                                              weights_ ? weights_->gradients : nullptr))
                   : std::nullopt;
    };
    plans_.emplace(plan_next, speeds_at(first_step_), all_);
    state_.begin_steps(first_step_ - 1, own_checkpoint_);
    for (int64_t step = first_step_; step <= batches_.last_step(); ++step) {
      comm_.set_step(step);
      StepMetrics metrics = train_step(step);
      // Also after a skipped step: the validation batches are planned already.
      const bool evaluates = !ends_badly() && stop_signal_ == 0 && batches_.evaluates(step);
      const bool evaluated = !evaluates || evaluate(&metrics);
      report(metrics);
      if (!evaluated) end_for_input(step);
      if (ends_badly()) end_badly(step);
      check_validation(metrics);
      // After the step's line was written: whether a save that ends here has succeeded.
      saved_ = !saves_after(step) || saves_beside(step) || saver_->finish();
      if (stop_signal_ != 0) return stopped(step);
    }
    if (batches_.evaluates_alone() && !evaluate(&summary_.last)) end_for_input(first_step_ - 1);
    const OtherRanks drifted =
        weights_ ? others_with_other_weights("comparing the trained weights") : OtherRanks();
    const std::vector<at::Tensor> trained =
        gather_trained_weights(comm_, weights_.get(), run_, config_.model);
    // Nobody waits for rank 0 while it writes: that may take longer than a wait may.
    barrier(comm_, "end of training");
    if (output_) save(trained, drifted);
    // Said when the weights are safe, and by rank 0 alone: an error of others would end it, too.
    if (comm_.rank() == 0 && summary_.last.validation_loss)
      check_last_validation(*summary_.last.validation_loss, config_);
    if (plans_->failure()) throw Error(*plans_->failure());
    if (!output_ || !ends_early()) return {};
    const std::string limit =
        fmt::format("train.exit_duration_in_mins = {:g}", config_.train.exit_duration_in_mins);
    return {.words = stopped_early(config_, limit, batches_.last_step(), saved_)};
  }

 private:
  /// Compares ranks, reads the checkpoint, takes the folder. Gives what to say about going on.
  std::vector<std::string> prepare() {
    agree_on_kernel(comm_, config_.attention.kernel == KernelChoice::kAuto, step_.kernel());
    resolved_ = resolved_config(config_, step_.kernel().name(), data_.summary(),
                                comm_.cuda_device() >= 0, checkpoint_.get());
    resolved_.kernel_passed_over = step_.kernel().passed_over();
    check_same_config(comm_, config_, resolved_);
    run_id_ = agreed_run_id(comm_, run_id_);
    facts_ = run_facts(config_, resolved_, num_workers_);
    std::vector<std::string> words;
    if (checkpoint_) words = check_resume(checkpoint_->index(), facts_);
    if (const std::string none = tracer_.missing(); !none.empty()) words.push_back(none);
    if (!resolved_.kernel_passed_over.empty()) words.push_back(resolved_.kernel_passed_over);
    read_start_weights(comm_, checkpoint_.get(), config_, weights_.get(), words);
    if (weights_)
      check_same_start(others_with_other_weights("comparing the initial weights"), run_,
                       checkpoint_ != nullptr);
    if (checkpoint_ && is_checkpoint_of(config_.train.output_dir, checkpoint_->folder()))
      own_checkpoint_ = first_step_ - 1;
    do_on_rank_0(comm_, config_.comm.timeout_s, "taking train.output_dir", [&] {
      output_.emplace(config_, state_, files_beside_weights(data_), own_checkpoint_, first_step_);
    });
    if (measures_speeds(config_))
      meter_.emplace(comm_.size(),
                     config_.plan.tolerance.is_auto ? measured_bytes_per_us(comm_) : 0);
    if (checkpoint_) {
      restore_trainer();
      words.insert(words.begin(), fmt::format("going on after step {} from {}", first_step_ - 1,
                                              checkpoint_->folder().string()));
      checkpoint_.reset();
    }
    return words;
  }

  /// Restores from the checkpoint what does not belong to the weights.
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
    std::string text = start_text(config_, describe_split(config_, data_, batches_.split()), run_,
                                  resolved_.kernel, peak_);
    for (const std::string& line : resumed) text += "\n" + line;
    output_->begin(text);
  }

  Speeds speeds_at(int64_t step) const { return meter_ ? meter_->speeds_at(step) : Speeds{}; }
  bool skips() const { return config_.train.bad_step == Config::Train::BadStep::kSkip; }
  /// Returns true if the run ends after this step because train.exit_duration_in_mins is over.
  bool ends_early() const { return batches_.last_step() < config_.train.steps; }

  /// While `step` runs, or validation batches after it, what is planned is a batch of the next step
  /// or a validation one: with the next step's speeds, whether this step's times are known or not.
  std::optional<PlannedBatch> next_planned(int64_t step, ProgramRequest::Kind kind,
                                           int stop_signal = 0) {
    const double begin_s = steady_seconds();
    std::optional<PlannedBatch> planned = plans_->next(kind, speeds_at(step + 1), stop_signal);
    tracer_.waited("plan", begin_s);
    return planned;
  }

  /// Ends the run, whose weights are those after `step`, for what a rank has failed in.
  [[noreturn]] void end_for_input(int64_t step) {
    const std::string saved =
        step >= first_step_ ? save_last(step, skipped_in_row_, skipped_in_row_ > 0) : "";
    barrier(comm_, "end of a run that cannot go on");
    throw Error(plans_->failure()->kind(), "{}{}", plans_->failure()->what(), saved);
  }

  /// After every step. What goes wrong on rank 0 is reported to the others before the next step.
  void report(const StepMetrics& metrics) {
    summary_.add(metrics);
    try {
      if (output_) output_->report(metrics, resolved_);
    } catch (const Error& error) {
      plans_->fail(error);
    }
  }

  /// Returns true if the step ends the run and has not reached the weights, alike on all ranks.
  bool ends_badly() const {
    return !outcome_.good() && !(skips() && skipped_in_row_ <= config_.train.max_skipped_steps);
  }

  [[noreturn]] void end_badly(int64_t step) {
    const bool all_bad = !goes_on_from_.empty() && !was_good_;
    const std::string saved =
        save_last(step - 1, skipped_in_row_ - 1, /*before_bad_step=*/true, all_bad);
    // Nobody ends the run before rank 0 has written the step's line.
    barrier(comm_, "end of a run that diverged");
    throw bad_step(config_, step, outcome_, skips() ? skipped_in_row_ - 1 : 0, all_bad, saved);
  }

  /// The weights are those after `step`: saves them unless they are. Gives what to say about them.
  std::string save_last(int64_t step, int64_t skipped_in_row, bool before_bad_step,
                        bool all_bad = false) {
    return save_last_state(
        {.step = step,
         .before_bad_step = before_bad_step,
         .all_bad = all_bad,
         .goes_on_from = goes_on_from_,
         .weights = weights_ ? weights_->model.parameters() : std::vector<at::Tensor>(),
         .begin_save =
             [&] { begin_save(step, skipped_in_row, /*beside=*/false, before_bad_step); }},
        config_, *saver_, comm_);
  }

  /// All ranks have the same values and stop together; the last one waits (check_last_validation).
  void check_validation(const StepMetrics& m) {
    const bool good = std::isfinite(m.validation_loss.value_or(0));
    if (good && m.validation_loss) saver_->good_until(m.step);
    if (good || m.step == config_.train.steps) return;
    const std::string saved = save_last(m.step, skipped_in_row_, /*before_bad_step=*/true);
    barrier(comm_, "end of a run that diverged");
    throw diverged(config_, fmt::format("step {}: the validation loss is", m.step), saved);
  }

  /// Returns true if a checkpoint of the state after this step is saved.
  bool saves_after(int64_t step) const {
    return stop_signal_ != 0 || ends_early() || saver_->is_due(step);
  }
  bool saves_beside(int64_t step) const {
    return config_.checkpoint.async && stop_signal_ == 0 && step != batches_.last_step();
  }

  /// Starts to save the present state, after `step`. With `beside`, training goes on meanwhile.
  void begin_save(int64_t step, int64_t skipped_in_row, bool beside, bool before_bad_step) {
    Json trainer = {{"guard", guard_.state()},
                    {"skipped_in_row", skipped_in_row},
                    {"data", batches_.state_after(step)}};
    if (meter_) trainer["speed_meter"] = meter_->state();
    const double begin_s = steady_seconds();
    saver_->begin(step, std::move(trainer), weights_ ? &weights_->optimizer : nullptr, beside,
                  before_bad_step);
    tracer_.waited("checkpoint", begin_s);
  }

  TrainEnd stopped(int64_t step) {
    const std::string words = stopped_early(config_, signal_name(stop_signal_), step, saved_);
    if (output_) output_->finish_metrics();
    return {.stopped_by = stop_signal_, .words = output_ ? words : ""};  // rank 0 says it
  }

  OtherRanks others_with_other_weights(std::string_view operation) {
    return ranks_with_other_weights(weights_->all_workers, run_, config_.model,
                                    weights_->model.parameters(), operation);
  }

  /// Records events of this rank in `recorder` from here on. Null means that they are not recorded.
  void record_to(TraceRecorder* recorder) {
    step_.set_recorder(recorder);
    all_.set_recorder(recorder);
    if (weights_) weights_->set_recorder(recorder);
  }

  StepMetrics train_step(int64_t step) {
    tracer_.begin_step(step);
    record_to(tracer_.recorder());
    const Stopwatch watch;
    const std::optional<PlannedBatch> next = next_planned(step, ProgramRequest::Kind::kTrain);
    if (!next) end_for_input(step - 1);
    const PlannedBatch& planned = *next;
    StepMetrics metrics{.step = step, .lr = learning_rate(config_, step - 1)};
    if (weights_) weights_->optimizer.zero_gradients();
    const auto targets = static_cast<double>(std::max<int64_t>(1, planned.figures.targets));
    outcome_ = {};
    UpdateRequest update = update_of(weights_.get());
    update.max_grad_norm = config_.optimizer.max_grad_norm;
    update.lr = metrics.lr;
    update.accepts = [&](const GradientSum& sum) {  // all workers know the same
      outcome_ = guard_.check(sum.loss_sum / targets, sum.norm);
      // A step without targets, of which nothing is learned, is no measure for others.
      if (outcome_.good() && planned.figures.targets > 0)
        guard_.accept(sum.loss_sum / targets, sum.norm);
      return outcome_.good();
    };
    const StepResult result = step_.train(planned.input, planned.figures.targets, update);
    metrics.step_s = watch.seconds();  // until it is known whether the step's state is saved
    share(result, planned, &metrics);
    if (!ends_badly() && saves_after(step))
      begin_save(step, skipped_in_row_, saves_beside(step), skipped_in_row_ > 0);
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

  /// Exchanges all ranks' figures of the step and adds them to `metrics`.
  void share(const StepResult& mine, const PlannedBatch& planned, StepMetrics* metrics) {
    RankStep own = rank_step(config_, mine, planned, memory_, weights_.get());
    own.outcome = outcome_;
    own.save = saver_->report();
    own.stop_signal = state_.stop_requested();
    own.ends_in_time = exit_time_.is_last(steady_seconds(), metrics->step_s,
                                          batches_.evaluates(metrics->step), saver_->last_save_s());
    const std::vector<RankStep> all = all_gather(all_, own, "loss sum");
    const double loss_sum = add_ranks(all, metrics);
    std::vector<SaveReport> saves;
    for (const RankStep& rank : all) {
      saves.push_back(rank.save);
      stop_signal_ = std::max(stop_signal_, rank.stop_signal);
    }
    on_reports(all[0].outcome, saves, metrics);
    const int64_t targets = planned.figures.targets;
    if (all[0].outcome.good() && targets > 0) saver_->good_until(metrics->step - 1);
    if (targets > 0) metrics->loss = loss_sum / static_cast<double>(targets);
    metrics->grad_norm = all[0].grad_norm;  // dedicated servers have none
    // The speeds are the same on every rank, since the values are. The first step's plan rests on
    // the bandwidth, which nobody has recorded yet.
    if (meter_ && (meter_->add(metrics->step, metrics->ranks) || metrics->step == first_step_))
      metrics->speeds = meter_->speeds();
    if (all[0].ends_in_time && stop_signal_ == 0 && metrics->step < batches_.last_step())
      plans_->restart([&] { batches_.end_after(metrics->step); }, speeds_at(metrics->step + 1));
    metrics->ends_in_time = ends_early();
    metrics->limit_left_s = exit_time_.left_s(steady_seconds());
  }

  /// Takes rank 0's outcome of the step and all ranks' reports on the save that is under way.
  void on_reports(const StepOutcome& outcome, const std::vector<SaveReport>& saves,
                  StepMetrics* metrics) {
    outcome_ = outcome;
    skipped_in_row_ = outcome.good() ? 0 : skipped_in_row_ + 1;
    was_good_ = was_good_ || outcome.good();
    metrics->skipped = !outcome.good();
    if (!outcome.good()) saver_->keep_older();  // than a state of which this came
    saver_->on_reports(saves);
    if (output_) state_.checkpoint_complete(saver_->last_complete());
  }

  /// Returns false if a batch cannot be had. A signal ends it, and what is not saved yet is saved.
  bool evaluate(StepMetrics* metrics) {
    const Stopwatch watch;
    const auto next = [&, may_stop = metrics->step >= first_step_] {  // else the run ends anyway
      const int stop_signal = may_stop ? state_.stop_requested() : 0;
      return next_planned(metrics->step, ProgramRequest::Kind::kEvaluate, stop_signal);
    };
    const auto losses = distca::evaluate(step_, batches_.num_validation(), next, comm_);
    if (plans_->stop_signal() != 0) {
      if (!saves_after(metrics->step))
        begin_save(metrics->step, skipped_in_row_, /*beside=*/false, skipped_in_row_ > 0);
      stop_signal_ = plans_->stop_signal();
    }
    if (!losses) return stop_signal_ != 0;
    metrics->validation_loss = losses->mean();
    metrics->validation_by_position = losses->bands();
    exit_time_.evaluated(watch.seconds());
    return true;
  }

  /// On rank 0. `drifted` are ranks whose trained weights are not what they should be.
  void save(const std::vector<at::Tensor>& trained, const OtherRanks& drifted) {
    check_last_update(trained, config_);
    output_->save_weights(trained, batches_.last_step());
    summary_.trace = tracer_.write({resolved_.kernel, resolved_.kernel_passed_over});
    summary_.metrics_missing = output_->finish_metrics();
    summary_.last_step = batches_.last_step();
    standard_output().important(summary_text(config_, data_, summary_));
    check_same_end(drifted, run_, config_);  // the others have ended well already
  }

  MemoryMeter memory_;  // first: it counts what the others make
  const Config& config_;
  Communicator& comm_;
  RunState& state_;
  std::unique_ptr<CheckpointReader> checkpoint_;  // the one to go on from, until it is read
  const std::filesystem::path goes_on_from_;      // its folder, or empty in a new run
  int64_t first_step_;
  int64_t own_checkpoint_ = 0;  // the step that the run goes on from, if it lies in its own folder
  std::string run_id_;
  TracedCommunicator all_;  // comm_, where a step's sums are traced
  int num_workers_;
  RunGrid run_;
  DataBlend data_;
  StepBatches batches_;
  std::unique_ptr<WorkerWeights> weights_;  // null on a dedicated server
  ExitTime exit_time_;
  StepGuard guard_;
  StepOutcome outcome_;  // outcome of the step under way
  int64_t skipped_in_row_ = 0;
  bool was_good_ = false;  // a step of this start
  Step step_;
  ResolvedConfig resolved_;
  RunFacts facts_;
  StepTracer tracer_;
  std::optional<RunOutput> output_;  // on rank 0 only
  std::optional<CheckpointSaver> saver_;
  int stop_signal_ = 0;  // that a rank was sent
  bool saved_ = true;    // no checkpoint of the last step was to be saved, or it is complete
  RunSummary summary_;
  ComputePeak peak_;
  std::optional<SpeedMeter> meter_;   // where what is measured enters the plans
  std::optional<AgreedPlans> plans_;  // last: its thread uses the others
};

}  // namespace

TrainEnd train(const Config& config, Communicator& comm, RunState& state, const RunStart& start) {
  // A setting of the calling thread (OpenMP): ranks that are threads set it each for themselves.
  at::set_num_threads(static_cast<int>(config.train.threads_per_rank));
  const Config capped = with_device_cap(config, comm, start.device_cap_bytes);
  std::optional<std::filesystem::path> chosen = start.checkpoint;
  while (true) {
    try {
      return Trainer(capped, comm, state, start, open_checkpoint(comm, capped, chosen)).run();
    } catch (const DamagedCheckpoint& damage) {
      chosen = choose_older(comm, capped, start.older_checkpoint, damage);
    }
  }
}

}  // namespace distca
