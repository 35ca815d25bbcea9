#include "distca/train/trainer.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/base/text.h"
#include "distca/batch/indexed_dataset.h"
#include "distca/comm/collectives.h"
#include "distca/comm/first_ranks.h"
#include "distca/comm/ordered_sum.h"
#include "distca/comm/tags.h"
#include "distca/comm/traced.h"
#include "distca/cost/speed_meter.h"
#include "distca/model/safetensors.h"
#include "distca/plan/plan.h"
#include "distca/plan/scheduler.h"
#include "distca/train/bandwidth.h"
#include "distca/train/metrics.h"
#include "distca/train/optimizer.h"
#include "distca/train/peak.h"
#include "distca/train/plan_ahead.h"
#include "distca/train/plan_request.h"
#include "distca/train/same_config.h"
#include "distca/train/speed_sample.h"
#include "distca/train/step.h"
#include "distca/train/step_tracer.h"
#include "distca/train/summary.h"

namespace distca {
namespace {

/// What plans are made by, as they say it themselves (PlanOptions::price).
std::string price_of(const Config& config) {
  return config.attention_profile ? profile_name(*config.attention_profile) : "pairs";
}

/// The held-out nano-batches, the same ones each time: at most an epoch, so that none counts twice.
std::vector<Batch> validation_batches(const Config& config, const IndexedDataset& data,
                                      const DocumentSplit& split) {
  std::vector<Batch> batches;
  if (split.validation.empty()) return batches;
  int64_t tokens = 0;
  for (int64_t document : split.validation) tokens += data.document_length(document);
  BatchOptions options = config.batch;
  options.nano_batches = 1;
  options.nano_batch_tokens = std::clamp<int64_t>(tokens, 1, options.nano_batch_tokens);
  options.max_document_tokens = std::min(options.max_document_tokens, options.nano_batch_tokens);
  BatchStream stream(data.document_lengths(), split.validation, options);
  const int64_t whole = tokens / options.nano_batch_tokens;
  for (int64_t i = 0; i < std::min(whole, config.train.validation_nano_batches); ++i)
    batches.push_back(stream.next());
  return batches;
}

/// What a rank has that holds weights.
struct Weights {
  Weights(const Config& config, Communicator& comm, int num_workers)
      : model(config.model, static_cast<uint64_t>(config.train.seed), comm.cuda_device()),
        optimizer(model.parameters(), config.optimizer),
        first(first_ranks(comm, num_workers)),
        workers(*first, kTracedTags + kTracedTagsEach) {}

  Llama model;
  Optimizer optimizer;
  std::unique_ptr<Communicator> first;
  TracedCommunicator workers;  // who sums gradients: `first`
};

class Trainer {
 public:
  Trainer(const Config& config, Communicator& comm)
      : config_(config),
        comm_(comm),
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
    check_same_config(comm_, config_,
                      {.price = price_of(config_), .kernel = step_.kernel().name()});
    peak_ = measure_peak(config_, comm_);
    if (comm_.rank() == 0) open_output();
    if (measures_speeds(config_)) {
      meter_.emplace(comm_.size(), config_.plan.tolerance == Config::PlanKeys::kAutoTolerance
                                       ? measured_bytes_per_us(comm_)
                                       : 0);
    }
    const auto plan = [this, rank = comm_.rank()](const Batch& batch, const Speeds& speeds) {
      return plan_batch(config_, data_, batch, rank, num_workers_, speeds);
    };
    plan_ahead_.emplace([this] { return next_batch(); }, plan, speeds_at(1));
    for (int64_t step = 1; step <= config_.train.steps; ++step) {
      comm_.set_step(step);
      StepMetrics metrics = train_step(step);
      if (evaluates(step)) metrics.validation_loss = evaluate(step);
      if (metrics_) metrics_->record(metrics);
      if (step == config_.train.steps) summary_.last = metrics;
    }
    // Nobody waits for rank 0 while it writes: that may take longer than a wait may.
    barrier(comm_, "end of training");
    if (comm_.rank() == 0) save();
  }

 private:
  void open_output() {
    const std::filesystem::path directory = config_.train.output_dir;
    std::error_code ignored;  // the write below reports what stands in the way
    for (const char* name : {"model.safetensors", "config.json"})
      std::filesystem::remove(directory / name, ignored);
    write_file_atomically(directory / "config.toml", recorded_config(config_));
    metrics_ = std::make_unique<Metrics>(directory, config_.train.steps,
                                         RunLabels{.price = price_of(config_),
                                                   .kernel = step_.kernel().name(),
                                                   .schedule = config_.train.schedule});
    print_start(config_, data_, num_workers_, step_.kernel().name(), peak_);
  }

  /// Held-out loss after this step?
  bool evaluates(int64_t step) const {
    const int64_t every = config_.train.validation_every;
    return !validation_.empty() &&
           (step == config_.train.steps || (every > 0 && step % every == 0));
  }

  /// Batches in the order of their use: a step's, then the held-out ones where they are due. On the
  /// planning thread.
  std::optional<Batch> next_batch() {
    if (held_out_left_ > 0) return validation_[validation_.size() - held_out_left_--];
    if (steps_planned_ == config_.train.steps) return std::nullopt;
    if (evaluates(++steps_planned_)) held_out_left_ = validation_.size();
    return stream_.next();
  }

  Speeds speeds_at(int64_t step) const { return meter_ ? meter_->speeds_at(step) : Speeds{}; }

  /// While `step` runs, or held-out batches after it, what is planned is a batch of the next step
  /// or a held-out one: with the next step's speeds, whether this step's times are known or not.
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
    const std::vector<std::byte> all =
        all_gather_bytes(all_, std::as_bytes(std::span(&mine, 1)), "plan hash");
    for (int rank = 0; rank < comm_.size(); ++rank) {
      uint64_t other = 0;
      std::memcpy(&other, all.data() + rank * sizeof(other), sizeof(other));
      DISTCA_CHECK(other == mine, "rank {} has another plan ({:016x}) than rank {} ({:016x})", rank,
                   other, comm_.rank(), mine);
    }
  }

  /// All ranks have the same value and stop together, before it reaches the weights.
  void check_finite(int64_t step, const char* what, double value) const {
    if (std::isfinite(value)) return;
    throw Error(ErrorKind::kTraining, "step {}: the {} is not finite; lower optimizer.lr (now {})",
                step, what, config_.optimizer.lr);
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
        std::move(planned.inputs), planned.num_targets,
        [&] { metrics.grad_norm = weights_->optimizer.sum_and_clip(weights_->workers); },
        [&] {
          // Else all ranks end below, dedicated servers too, before it reaches the weights.
          if (std::isfinite(metrics.grad_norm)) weights_->optimizer.update(metrics.lr);
        });
    share(result, planned, &metrics);
    metrics.step_s = watch.seconds();
    tracer_.end_step();
    record_to(nullptr);
    check_finite(step, "gradient norm", metrics.grad_norm);
    check_finite(step, "loss", metrics.loss);
    metrics.attention_predicted_s = planned.attention_s;
    metrics.chosen = planned.chosen;
    metrics.speeds_from_step = planned.speeds_from_step;
    metrics.num_resent = planned.num_resent;
    metrics.tokens = planned.num_tokens;
    metrics.model_flops = config_.model.train_flops(planned.num_tokens, planned.pairs);
    metrics.peak_flops_per_s = peak_.flops_per_s;
    metrics.imbalance_before = planned.imbalance_before;
    metrics.imbalance_after = planned.imbalance_after;
    metrics.plan_s = planned.plan_s;
    metrics.plan_wait_s = planned.wait_s;
    metrics.times = result.times;
    summary_.add(planned.load_before, planned.load_after, metrics);
    return metrics;
  }

  /// What every rank has of the step, told to all.
  void share(const StepResult& mine, const PlannedBatch& planned, StepMetrics* metrics) {
    std::vector<double> sums = {mine.loss_sum, comm_.rank() == 0 ? metrics->grad_norm : 0};
    int64_t ExchangeBytes::*const counts[] = {&ExchangeBytes::sent, &ExchangeBytes::received,
                                              &ExchangeBytes::packed, &ExchangeBytes::unpacked,
                                              &ExchangeBytes::copied};
    for (const auto count : counts) sums.push_back(static_cast<double>(mine.bytes.*count));
    // A slot for each rank and figure: the sum over ranks gathers them.
    const RankSample work = planned.work[comm_.rank()];
    const RankSample sample = rank_sample(mine.times, work.tokens, work.load);
    const size_t first_slot = sums.size();
    const auto size = static_cast<size_t>(comm_.size());
    sums.resize(first_slot + 3 * size, 0);
    double* const slots = sums.data() + first_slot + comm_.rank();
    slots[0] = attention_clock(config_) == AttentionClock::kProcessor
                   ? mine.times.processor_of(OpKind::kAttend)
                   : mine.times.of(OpKind::kAttend);
    slots[size] = static_cast<double>(sample.linear_ns);
    slots[2 * size] = static_cast<double>(sample.attention_ns);
    ordered_sum(all_, sums, "loss sum");
    metrics->loss =
        planned.num_targets > 0 ? sums[0] / static_cast<double>(planned.num_targets) : 0.0;
    metrics->grad_norm = sums[1];
    for (size_t i = 0; i < std::size(counts); ++i)
      metrics->bytes.*counts[i] = static_cast<int64_t>(sums[2 + i]);
    const std::span<const double> all = std::span(sums).subspan(first_slot);
    metrics->attention_s.assign(all.begin(), all.begin() + comm_.size());
    if (meter_) measure(planned, all.subspan(size, size), all.subspan(2 * size, size), metrics);
  }

  /// The same values on every rank: so are the speeds.
  void measure(const PlannedBatch& planned, std::span<const double> linear_ns,
               std::span<const double> attention_ns, StepMetrics* metrics) {
    std::vector<RankSample> samples = planned.work;
    for (size_t rank = 0; rank < samples.size(); ++rank) {
      samples[rank].linear_ns = static_cast<int64_t>(linear_ns[rank]);
      samples[rank].attention_ns = static_cast<int64_t>(attention_ns[rank]);
    }
    // The first step's plan rests on the bandwidth, which nobody has recorded yet.
    if (meter_->add(metrics->step, samples) || metrics->step == 1)
      metrics->speeds = meter_->speeds();
  }

  double evaluate(int64_t step) {
    double sum[1] = {0};
    int64_t targets = 0;
    for (size_t i = 0; i < validation_.size(); ++i) {
      PlannedBatch planned = next_planned(step);
      targets += planned.num_targets;
      sum[0] += step_.evaluate(std::move(planned.inputs)).loss_sum;
    }
    ordered_sum(comm_, sum, "held-out loss");
    const double loss = targets > 0 ? sum[0] / static_cast<double>(targets) : 0.0;
    check_finite(step, "held-out loss", loss);
    return loss;
  }

  void save() {
    const std::filesystem::path directory = config_.train.output_dir;
    write_safetensors(directory / "model.safetensors", weights_->model.parameter_names(),
                      weights_->model.parameters());
    write_file_atomically(
        directory / "config.json",
        config_.model.to_hugging_face(config_.batch.max_document_tokens).dump(2) + "\n");
    tracer_.write();
    print_summary(config_, data_, summary_);
  }

  const Config& config_;
  Communicator& comm_;
  TracedCommunicator all_;  // comm_, where a step's sums are traced
  int num_workers_;
  IndexedDataset data_;
  DocumentSplit split_;
  BatchStream stream_;
  std::vector<Batch> validation_;
  std::unique_ptr<Weights> weights_;  // null on a dedicated server
  Step step_;
  StepTracer tracer_;
  std::unique_ptr<Metrics> metrics_;
  RunSummary summary_;
  ComputePeak peak_;
  std::optional<SpeedMeter> meter_;  // where what is measured enters the plans
  // Of the planning thread.
  int64_t steps_planned_ = 0;
  size_t held_out_left_ = 0;
  std::optional<PlanAhead> plan_ahead_;  // last: its thread uses the others
};

}  // namespace

namespace {

/// Refuses a model of which one rank alone would not fit this machine.
void check_memory(const LlamaConfig& model) {
  // Master weights, gradients and AdamW's two moments.
  const double element = model.dtype == ScalarType::kFloat64 ? 8.0 : 4.0;
  const double needed = 4.0 * element * static_cast<double>(model.num_parameters());
  const double present =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
  if (needed <= present) return;
  throw Error(ErrorKind::kConfig,
              "model of {} parameters: weights, gradients and AdamW's state need {:.1f} GiB on "
              "each worker, this "
              "machine has {:.1f} GiB",
              with_thousands(model.num_parameters()), needed / 0x1p30, present / 0x1p30);
}

}  // namespace

void set_up_process(const Config& config) {
  if (config.train.device != "cuda" || !config.train.deterministic) return;
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  // Else every buffer is filled before its use: nothing reads one that nobody wrote.
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

void check_run(const Config& config, int num_workers, bool holds_weights) {
  if (config.data.prefix.empty()) {
    throw Error(ErrorKind::kConfig,
                "data.prefix is not set: make a data set with `distca data prepare` and name it");
  }
  if (config.train.device == "cuda" && !at::hasCUDA()) {
    throw Error(ErrorKind::kConfig,
                "train.device = cuda: this machine or this PyTorch has no CUDA device");
  }
  if (holds_weights) check_memory(config.model);
  if (chosen_kernel(kernel_request(config)) == KernelChoice::kCpu) {
    kernels::chosen_isa();  // refuses an instruction set that is not here
  }
  check_runs(find_scheduler(config.plan.scheduler));
  const IndexedDataset data(config.data.prefix);
  data.check_vocabulary(config.model.vocab_size);
  const DocumentSplit split =
      split_documents(data.num_documents(), config.data.validation_fraction, config.batch.seed);
  BatchStream stream(data.document_lengths(), split.train, config.batch);
  plan_nano_batches(config, stream.next(), num_workers);
  validation_batches(config, data, split);
  check_trace(config);
  const std::filesystem::path metrics =
      std::filesystem::path(config.train.output_dir) / "metrics.jsonl";
  std::error_code denied;  // what cannot be looked at cannot be written either, which says why
  if (!config.train.overwrite && std::filesystem::exists(metrics, denied)) {
    throw Error(
        ErrorKind::kConfig,
        "{} holds a run already: choose another train.output_dir or set train.overwrite=true",
        config.train.output_dir);
  }
}

void train(const Config& config, Communicator& comm) {
  // A setting of the calling thread (OpenMP): ranks that are threads set it each for themselves.
  at::set_num_threads(static_cast<int>(config.train.threads_per_rank));
  Trainer(config, comm).run();
}

}  // namespace distca
