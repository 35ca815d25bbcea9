#include "distca/train/trainer.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <fmt/ranges.h>

#include <cmath>
#include <cstdio>
#include <numeric>
#include <optional>

#include "distca/base/clock.h"
#include "distca/base/console.h"
#include "distca/base/error.h"
#include "distca/base/text.h"
#include "distca/batch/indexed_dataset.h"
#include "distca/comm/collectives.h"
#include "distca/comm/ordered_sum.h"
#include "distca/comm/tags.h"
#include "distca/comm/traced.h"
#include "distca/cost/speed_meter.h"
#include "distca/model/weights_file.h"
#include "distca/train/bandwidth.h"
#include "distca/train/compute_peak.h"
#include "distca/train/data_split.h"
#include "distca/train/metrics.h"
#include "distca/train/metrics_file.h"
#include "distca/train/optimizer.h"
#include "distca/train/plan_ahead.h"
#include "distca/train/plan_request.h"
#include "distca/train/progress.h"
#include "distca/train/run_folder.h"
#include "distca/train/run_summary.h"
#include "distca/train/same_config.h"
#include "distca/train/same_weights.h"
#include "distca/train/speed_sample.h"
#include "distca/train/step.h"
#include "distca/train/step_tracer.h"

namespace distca {
namespace {

/// Workers are the first ranks.
std::vector<int> worker_ranks(int num_workers) {
  std::vector<int> ranks(num_workers);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// What a rank has that holds weights.
struct Weights {
  Weights(const Config& config, Communicator& comm, int num_workers)
      : model(config.model, static_cast<uint64_t>(config.train.seed), comm.cuda_device()),
        optimizer(model.weights(), model.parameters(), config.optimizer),
        group(comm.split(worker_ranks(num_workers))),
        workers(*group, kTracedTags + kTracedTagsEach) {}

  Llama model;
  Optimizer optimizer;
  std::unique_ptr<Communicator> group;
  TracedCommunicator workers;  // who sums gradients: `group`
};

/// What a rank tells the others of a step.
struct RankStep {
  double loss_sum = 0, grad_norm = 0;
  ExchangeBytes bytes;
  double attention_s = 0;
  RankSample sample;
};

class Trainer {
 public:
  Trainer(const Config& config, Communicator& comm, RunState& state)
      : config_(config),
        comm_(comm),
        state_(state),
        all_(comm, kTracedTags),
        num_workers_(comm.size() - static_cast<int>(config.servers.dedicated)),
        data_(config.data.prefix),
        split_(split_documents(data_.num_documents(), config.data.validation_fraction,
                               config.batch.seed)),
        stream_(data_.document_lengths(), split_.train, config.batch),
        validation_(validation_batches(config, data_, split_)),
        weights_(comm.rank() < num_workers_ ? std::make_unique<Weights>(config, comm, num_workers_)
                                            : nullptr),
        step_(config.model, weights_ ? &weights_->model : nullptr, comm, step_options(config)),
        tracer_(config, comm, num_workers_) {
    summary_.num_workers = num_workers_;
  }

  void run() {
    comm_.set_step(0);
    resolved_ = {
        .price = config_.attention_profile ? profile_name(*config_.attention_profile) : "pairs",
        .kernel = step_.kernel().name(),
        .data = data_summary(data_),
        .isa = comm_.cuda_device() < 0 ? at::get_cpu_capability() : std::string()};
    check_same_config(comm_, config_, resolved_);
    check_initial_weights();
    if (comm_.rank() == 0) take_folder();
    peak_ = measure_peak(config_, comm_);
    if (comm_.rank() == 0) open_output();
    if (measures_speeds(config_)) {
      meter_.emplace(comm_.size(),
                     config_.plan.tolerance.is_auto() ? measured_bytes_per_us(comm_) : 0);
    }
    const auto plan_next = [this, rank = comm_.rank()](const Speeds& speeds) {
      const std::optional<StepBatch> batch = next_batch();
      return batch ? std::optional(plan_batch(config_, data_, *batch, rank, num_workers_, speeds))
                   : std::nullopt;
    };
    plan_ahead_.emplace(plan_next, speeds_at(1));
    for (int64_t step = 1; step <= config_.train.steps; ++step) {
      comm_.set_step(step);
      StepMetrics metrics = train_step(step);
      const bool finite = std::isfinite(metrics.grad_norm) && std::isfinite(metrics.loss);
      if (finite && evaluates(step)) metrics.validation_loss = evaluate(step);
      summary_.add(metrics);
      if (comm_.rank() == 0) tell(metrics);
      check_finite(metrics);
    }
    if (weights_) drifted_ = others_with_other_weights("comparing the trained weights");
    // Nobody waits for rank 0 while it writes: that may take longer than a wait may.
    barrier(comm_, "end of training");
    if (comm_.rank() == 0) save();
    // The last one is said when the weights are safe, and by rank 0 alone: ranks that end with an
    // error have the others ended too.
    if (comm_.rank() == 0 && summary_.last.validation_loss)
      check_last_validation(*summary_.last.validation_loss);
  }

 private:
  /// Before the first step: who may not write there, or has no room, ends now.
  void take_folder() {
    folder_.emplace(config_.train.output_dir, config_.train.overwrite);
    folder_->reserve(
        safetensors_bytes(stored_weights(config_.model), weights_metadata()),
        config_.model.to_hugging_face(config_.batch.max_document_tokens).dump(2) + "\n");
  }

  void open_output() {
    Config recorded = config_;
    recorded.train.overwrite = false;  // a permission, given once
    folder_->begin(recorded_config(recorded));
    metrics_file_.emplace(folder_->metrics_path());
    progress_.emplace(standard_output(), config_.train.steps);
    std::string text = start_text(config_, split_words(config_, data_, split_), num_workers_,
                                  resolved_.kernel, peak_);
    if (const std::string line = folder_->replaces(); !line.empty()) text = line + "\n" + text;
    progress_->begin(text);
  }

  void tell(const StepMetrics& metrics) {
    metrics_file_->add(metrics_line(metrics, config_, resolved_));
    state_.step_done(metrics.step);
    progress_->show(metrics);
  }

  SafetensorsMetadata weights_metadata() const {
    return {{kProducerKey, kProducer}, {"steps", std::to_string(config_.train.steps)}};
  }

  /// Validation loss after this step?
  bool evaluates(int64_t step) const {
    const int64_t every = config_.train.validation_every;
    return !validation_.empty() &&
           (step == config_.train.steps || (every > 0 && step % every == 0));
  }

  /// Batches in the order of their use: a step's, then the validation ones where they are due. On
  /// the planning thread.
  std::optional<StepBatch> next_batch() {
    if (validation_left_ > 0) {
      return StepBatch{.batch = validation_[validation_.size() - validation_left_--],
                       .kind = ProgramRequest::Kind::kEvaluate};
    }
    if (steps_planned_ == config_.train.steps) return std::nullopt;
    if (evaluates(++steps_planned_)) validation_left_ = validation_.size();
    return StepBatch{.batch = stream_.next(), .checks_all_ranks = steps_planned_ == 1};
  }

  Speeds speeds_at(int64_t step) const { return meter_ ? meter_->speeds_at(step) : Speeds{}; }

  /// While `step` runs, or validation batches after it, what is planned is a batch of the next step
  /// or a validation one: with the next step's speeds, whether this step's times are known or not.
  PlannedBatch next_planned(int64_t step) {
    const double begin_s = steady_seconds();
    PlannedBatch planned = plan_ahead_->next(speeds_at(step + 1));
    if (TraceRecorder* recorder = tracer_.recorder()) {
      recorder->add({.kind = TraceKind::kWait,
                     .name = "plan",
                     .begin_s = begin_s,
                     .end_s = steady_seconds()});
    }
    compare_hashes(planned.hash);
    return planned;
  }

  /// Ranks plan for themselves: a plan is used only when all have the same.
  void compare_hashes(uint64_t mine) {
    const std::vector<uint64_t> all = all_gather(all_, mine, "plan hash");
    for (int rank = 0; rank < comm_.size(); ++rank) {
      DISTCA_CHECK(all[rank] == mine, "rank {} has another plan ({:016x}) than rank {} ({:016x})",
                   rank, all[rank], comm_.rank(), mine);
    }
  }

  /// All ranks have the same values and stop together, before they reach the weights. The last
  /// validation loss is looked at when the weights are safe (check_last_validation).
  void check_finite(const StepMetrics& m) {
    const bool last = m.step == config_.train.steps;
    const char* const what = !std::isfinite(m.grad_norm) ? "gradient norm"
                             : !std::isfinite(m.loss)    ? "loss"
                             : !last && !std::isfinite(m.validation_loss.value_or(0))
                                 ? "validation loss"
                                 : nullptr;
    if (!what) return;
    // Nobody ends the run before rank 0 has written the step's line.
    barrier(comm_, "end of a run that diverged");
    const bool initial = m.step == 1 && !(std::isfinite(m.grad_norm) && std::isfinite(m.loss));
    throw diverged(fmt::format("step {}: the {} is", m.step, what), initial);
  }

  /// `what` not finite, and what to do: `initial` weights are no update's fault.
  Error diverged(const std::string& what, bool initial) const {
    return Error(ErrorKind::kTraining, "{} not finite; lower {} (now {})", what,
                 initial ? "model.initializer_range" : "optimizer.lr",
                 initial ? config_.model.initializer_range : config_.optimizer.lr);
  }

  std::vector<int> others_with_other_weights(std::string_view operation) {
    return ranks_with_other_weights(weights_->workers, weights_->model.parameters(), operation);
  }

  void check_initial_weights() {
    if (!weights_) return;
    const std::vector<int> others = others_with_other_weights("comparing the initial weights");
    DISTCA_THROW_IF(!others.empty(), ErrorKind::kConfig,
                    "rank{} {} drew other initial weights than rank 0: start the same version of "
                    "distca on all ranks",
                    others.size() > 1 ? "s" : "", fmt::join(others, ", "));
  }

  /// On rank 0, after it has saved: the others have ended well and need not wait for that.
  void check_replicas() const {
    DISTCA_THROW_IF(
        !drifted_.empty(), ErrorKind::kTraining,
        "rank{} {} ended with other weights than rank 0: from some step on each trained a "
        "model of its own; rank 0's is saved in {}, but is not what one worker would have "
        "trained; look for unlike or faulty machines",
        drifted_.size() > 1 ? "s" : "", fmt::join(drifted_, ", "), config_.train.output_dir);
  }

  void check_last_validation(double loss) const {
    DISTCA_THROW_IF(
        !std::isfinite(loss), ErrorKind::kTraining,
        "step {}: the validation loss is not finite; lower optimizer.lr (now {}); the weights "
        "are saved as they are in {}",
        config_.train.steps, config_.optimizer.lr, config_.train.output_dir);
  }

  /// From here on, events of this rank go to `recorder`; null: nowhere.
  void record_to(TraceRecorder* recorder) {
    step_.set_recorder(recorder);
    all_.set_recorder(recorder);
    if (weights_) weights_->workers.set_recorder(recorder);
  }

  StepMetrics train_step(int64_t step) {
    tracer_.begin_step(step);
    record_to(tracer_.recorder());
    const Stopwatch watch;
    PlannedBatch planned = next_planned(step);
    StepMetrics metrics;
    metrics.step = step;
    metrics.lr = learning_rate(config_.optimizer, step - 1, config_.train.steps);
    if (weights_) weights_->optimizer.zero_gradients();
    const StepResult result = step_.train(
        planned.input, planned.figures.targets,
        [&](double loss_sum) {
          metrics.grad_norm = weights_->optimizer.sum_and_clip(weights_->workers, loss_sum).norm;
        },
        [&] {
          // Else all ranks end below, dedicated servers too, before it reaches the weights.
          if (std::isfinite(metrics.grad_norm)) weights_->optimizer.update(metrics.lr);
        });
    share(result, planned, &metrics);
    metrics.step_s = watch.seconds();
    tracer_.end_step();
    record_to(nullptr);
    metrics.plan = planned.figures;
    if (metrics.plan.num_redispatched > 0) say_redispatched(step);
    metrics.model_flops = config_.model.train_flops(metrics.plan.tokens, metrics.plan.pairs);
    metrics.peak_flops_per_s = peak_.flops_per_s;
    metrics.times = result.times;
    return metrics;
  }

  /// Once a run, where keys were to be kept.
  void say_redispatched(int64_t step) {
    if (comm_.rank() != 0 || config_.exchange.keys != Config::Exchange::Keys::kKeep ||
        std::exchange(said_redispatched_, true))
      return;
    standard_error().line(fmt::format(
        "warning: step {}: plan.max_memory_gib = {:g} has no room for kept keys: here, and where "
        "else they do not fit, they travel again (nano_batches_redispatched in metrics.jsonl)",
        step, config_.plan.max_memory_gib));
  }

  /// What every rank has of the step, told to all.
  void share(const StepResult& mine, const PlannedBatch& planned, StepMetrics* metrics) {
    const RankSample work = planned.work[comm_.rank()];
    const RankStep own{.loss_sum = mine.loss_sum,
                       .grad_norm = metrics->grad_norm,
                       .bytes = mine.bytes,
                       .attention_s = config_.attention_has_one_thread()
                                          ? mine.times.processor_of(OpKind::kCoreAttention)
                                          : mine.times.of(OpKind::kCoreAttention),
                       .sample = rank_sample(mine.times, work.tokens, work.load)};
    double loss_sum = 0;
    std::vector<RankSample> samples;
    const std::vector<RankStep> all = all_gather(all_, own, "loss sum");
    for (const RankStep& rank : all) {
      loss_sum += rank.loss_sum;
      metrics->bytes += rank.bytes;
      metrics->attention_s.push_back(rank.attention_s);
      samples.push_back(rank.sample);
    }
    const int64_t targets = planned.figures.targets;
    metrics->loss = targets > 0 ? loss_sum / static_cast<double>(targets) : 0.0;
    metrics->grad_norm = all[0].grad_norm;  // dedicated servers have none
    // The same values on every rank: so are the speeds. The first step's plan rests on the
    // bandwidth, which nobody has recorded yet.
    if (meter_ && (meter_->add(metrics->step, samples) || metrics->step == 1))
      metrics->speeds = meter_->speeds();
  }

  double evaluate(int64_t step) {
    double sum[1] = {0};
    int64_t targets = 0;
    for (size_t i = 0; i < validation_.size(); ++i) {
      PlannedBatch planned = next_planned(step);
      targets += planned.figures.targets;
      sum[0] += step_.evaluate(planned.input).loss_sum;
    }
    ordered_sum(comm_, sum, "validation loss");
    return sum[0] / static_cast<double>(targets);
  }

  void save() {
    // No step has looked at what the last update made.
    if (const int64_t bad = num_not_finite(weights_->model.parameters()); bad > 0) {
      throw diverged(fmt::format("the last update left {} weights that are", with_thousands(bad)),
                     false);
    }
    state_.begin_saving();
    folder_->save(
        [this](AtomicFile& file) { write_weights(file, weights_->model, weights_metadata()); });
    state_.saved();
    tracer_.write();
    summary_.metrics_missing = metrics_file_->finish();
    progress_->end(summary_text(config_, data_, summary_));
    check_replicas();
  }

  const Config& config_;
  Communicator& comm_;
  RunState& state_;
  TracedCommunicator all_;  // comm_, where a step's sums are traced
  int num_workers_;
  IndexedDataset data_;
  DocumentSplit split_;
  BatchStream stream_;
  std::vector<Batch> validation_;
  std::unique_ptr<Weights> weights_;  // null on a dedicated server
  Step step_;
  ResolvedConfig resolved_;
  StepTracer tracer_;
  std::optional<RunFolder> folder_;  // of rank 0, as are metrics_file_ and progress_
  std::optional<MetricsFile> metrics_file_;
  std::optional<Progress> progress_;
  RunSummary summary_;
  std::vector<int> drifted_;  // ranks whose trained weights are not rank 0's
  ComputePeak peak_;
  bool said_redispatched_ = false;
  std::optional<SpeedMeter> meter_;  // where what is measured enters the plans
  // Of the planning thread.
  int64_t steps_planned_ = 0;
  size_t validation_left_ = 0;
  std::optional<PlanAhead> plan_ahead_;  // last: its thread uses the others
};

}  // namespace

void train(const Config& config, Communicator& comm, RunState& state) {
  // A setting of the calling thread (OpenMP): ranks that are threads set it each for themselves.
  at::set_num_threads(static_cast<int>(config.train.threads_per_rank));
  Trainer(config, comm, state).run();
}

}  // namespace distca
