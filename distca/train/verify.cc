#include "distca/train/verify.h"
#include "distca/train/start_weights.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/base/text.h"
#include "distca/batch/data_blend.h"
#include "distca/comm/device_stream.h"
#include "distca/comm/host_read.h"
#include "distca/comm/ordered_sum.h"
#include "distca/comm/thread_group.h"
#include "distca/forecast/data_split.h"
#include "distca/train/plan_ahead.h"
#include "distca/train/same_result.h"
#include "distca/train/same_weights.h"
#include "distca/train/step.h"
#include "distca/train/worker_weights.h"

namespace distca {
namespace {

/// The results of a step on rank 0.
struct Played {
  std::vector<at::Tensor> gradients;  // sums over the workers, for the mean loss, on the CPU
  double loss_sum = 0;                // nats, of all workers
  OtherRanks other_ranks;
  std::string kernel;
  PlanFigures figures;
  double seconds = 0;
};

/// On a worker.
Played work(const Config& config, const PlannedBatch& planned, const RunGrid& run,
            const VerifyHooks& hooks, Communicator& comm) {
  WorkerWeights weights(config, comm, run, planned.input.program.gradients);
  load_start_weights(nullptr, config, weights);
  const std::vector<at::Tensor> parameters = weights.model.parameters();
  const auto call = [&](const VerifyHooks::Hook& hook) {
    if (hook) hook(comm.rank(), parameters);
  };
  Step step(config.model, &weights.model, comm, step_options(config));
  const std::string side = counted(run.num_workers(), "worker");
  const auto operations = static_cast<double>(planned.input.program.ops.size());
  double done = 0;
  if (hooks.progress && comm.rank() == 0) {
    step.set_watch([&](const Op&, bool is_over) {
      if (is_over) hooks.progress(side, ++done / operations);
    });
  }
  Played played;
  UpdateRequest update = update_of(&weights);
  update.accepts = [](const GradientSum&) { return false; };
  update.before_sum = [&] { call(hooks.before_sum); };
  played.loss_sum = step.train(planned.input, planned.figures.targets, update).loss_sum;
  call(hooks.after_sum);
  ordered_sum(weights.all_workers, std::span(&played.loss_sum, 1), "loss");
  for (const at::Tensor& parameter : parameters)
    played.gradients.push_back(host_copy(parameter.grad()));
  played.other_ranks = ranks_with_other_weights(weights.all_workers, run, config.model,
                                                played.gradients, "comparing the gradients");
  if (comm.rank() == run.first_replica(comm.rank()))
    played.gradients = gather_parts(weights.all_workers, run, config.model, played.gradients);
  played.kernel = step.kernel().name();
  return played;
}

Played play(const Config& config, const DataBlend& data, const Batch& batch, int num_workers,
            const VerifyHooks& hooks) {
  const Stopwatch watch;
  std::vector<PlannedBatch> planned;
  for (int rank = 0; rank < num_ranks(config, num_workers); ++rank) {
    // The programs of all ranks are checked together, once.
    planned.push_back(plan_batch(config, data, {.batch = batch, .checks_all_ranks = rank == 0},
                                 rank, num_workers));
    DISTCA_CHECK_EQ(planned[rank].figures.hash, planned[0].figures.hash);
  }
  int64_t left_out = 0;
  for (const PlannedBatch& rank : planned) left_out += rank.targets_left_out;
  for (PlannedBatch& rank : planned) rank.figures.targets -= left_out;
  Played first;
  const RunGrid run = run_grid(config, num_workers);
  const auto body = [&](Communicator& comm) {
    // A setting of the calling thread.
    at::set_num_threads(static_cast<int>(config.train.threads_per_rank));
    const PlannedBatch& mine = planned[comm.rank()];
    if (comm.rank() >= num_workers) {  // a dedicated server
      Step(config.model, nullptr, comm, step_options(config))
          .train(mine.input, mine.figures.targets, {});
      return;
    }
    Played played = work(config, mine, run, hooks, comm);
    if (comm.rank() == 0) first = std::move(played);
  };
  run_ranks(static_cast<int>(planned.size()), config.comm, body,
            config.on_cuda() ? cuda_thread_device(0) : ThreadDevice{});
  first.figures = planned[0].figures;
  first.seconds = watch.seconds();
  return first;
}

/// Returns the configuration of the same run on one worker that computes everything itself.
Config alone(Config config) {
  config.parallel.tensor_model_parallel_size = 1;
  config.parallel.pipeline_model_parallel_size = 1;
  config.parallel.pipeline_layers.clear();
  config.plan = {};
  config.plan.scheduler = "local";
  config.attention_profile = nullptr;
  config.servers = {};
  config.exchange = {};
  config.train.overlap = Overlap::kNone;
  config.train.recompute = Recompute::kNone;
  config.train.loss_chunk_tokens = std::max<int64_t>(1, config.batch.nano_batch_tokens);
  return config;
}

void check_finite(const Config& config, const Played& one) {
  const int64_t bad = num_not_finite(one.gradients);
  DISTCA_THROW_IF(!std::isfinite(one.loss_sum) || bad > 0, ErrorKind::kTraining,
                  "on one worker, the {} of the first batch {} not finite, so there is nothing to "
                  "compare; lower model.initializer_range (now {})",
                  bad > 0 ? "gradients" : "loss", bad > 0 ? "are" : "is",
                  config.model.initializer_range);
}

Difference compared(std::string name, const at::Tensor& many, const at::Tensor& one, double bound) {
  const bool zero = host_number(one.any()) == 0;
  return {.name = std::move(name),
          .value = difference(many, one),
          .bound = zero ? zero_bound(bound) : bound,
          .zero = zero};
}

std::string describe(const Verification& v, const Difference& d) {
  const bool is_loss = &d == &v.loss_difference;
  return fmt::format("{} on {} differs from one worker's{} by {:.1e}{} (bound {:.2g})",
                     is_loss ? "the loss" : "the gradient of " + d.name,
                     counted(v.num_workers, "worker"), d.zero ? ", which is zero," : "",
                     std::abs(d.value),  // NaN may have a sign
                     d.zero    ? ""
                     : is_loss ? " of its value"
                               : " of its largest value",
                     d.bound);
}

}  // namespace

double Difference::share() const {
  return std::isnan(value) ? std::numeric_limits<double>::infinity() : value / bound;
}

const Difference& Verification::worst_gradient() const {
  return *std::ranges::max_element(gradients, {}, &Difference::share);
}

Config verify_config(Config config, ScalarType dtype) {
  const double wider = static_cast<double>(element_bytes(dtype)) /
                       static_cast<double>(element_bytes(config.model.dtype));
  config.model.dtype = dtype;
  if (!kernel_fault(kernel_request(config)).empty()) config.attention.kernel = KernelChoice::kAuto;
  config.plan.max_memory_gib *= wider;
  config.plan.bandwidth_mb_per_s =
      std::llround(static_cast<double>(config.plan.bandwidth_mb_per_s) * wider);
  config.optimizer.max_grad_norm = 0;
  config.parallel.use_distributed_optimizer = false;  // every worker has all gradients
  config.parallel.overlap_grad_reduce = false;        // and its own, whole, before the sum
  config.train.steps = 1;
  config.train.trace.clear();
  config.comm.backend = Config::Comm::Backend::kThreads;
  return config;
}

Verification verify(const Config& config, int num_workers, const VerifyHooks& hooks) {
  const DataBlend data(config.data.prefix);
  const Batch batch = training_stream(config, data, split_data(config, data)).next();
  const Played many = play(config, data, batch, num_workers, hooks);
  const Played one = play(alone(config), data, batch, 1, {.progress = hooks.progress});
  check_finite(config, one);
  const PlanFigures& figures = many.figures;
  const double targets = static_cast<double>(std::max<int64_t>(figures.targets, 1));
  Verification v{
      .num_workers = num_workers,
      .nano_batches = static_cast<int64_t>(batch.size()),
      .tokens = figures.tokens,
      .targets = figures.targets,
      .redispatched = figures.num_redispatched > 0,
      .kernel = many.kernel,
      .bound = format_bound(config.model.dtype, config.model.num_hidden_layers, figures.tokens),
      .loss = many.loss_sum / targets,
      .loss_of_one = one.loss_sum / targets,
      .seconds = many.seconds,
      .seconds_of_one = one.seconds,
      .other_ranks = many.other_ranks,
      .others = name_others(many.other_ranks, run_grid(config, num_workers))};
  for (const NanoBatchSource& source : batch)
    v.documents += static_cast<int64_t>(source.nano_batch.documents.size());
  v.loss_difference = compared("loss", at::scalar_tensor(v.loss, at::kDouble),
                               at::scalar_tensor(v.loss_of_one, at::kDouble), v.bound);
  const std::vector<Weight> weights = weight_table(config.model);
  for (size_t i = 0; i < weights.size(); ++i)
    v.gradients.push_back(compared(weights[i].name, many.gradients[i], one.gradients[i], v.bound));
  return v;
}

std::string fault_of(const Verification& v) {
  if (!v.other_ranks.empty()) {
    return fmt::format(
        "{} summed the gradients{} of {} workers to other bits than {}: {} would drift apart",
        v.others.ranks, v.others.part, v.num_workers, v.others.firsts,
        !v.other_ranks.replicas.empty() ? "replicas"
        : !v.other_ranks.copies.empty() ? "its copies"
                                        : "they");
  }
  const auto beyond = std::ranges::count_if(v.gradients, &Difference::beyond);
  std::string fault;
  if (v.loss_difference.beyond()) fault = describe(v, v.loss_difference);
  if (beyond > 0) {
    fault += (fault.empty() ? "" : "; ") + describe(v, v.worst_gradient());
    if (beyond > 1) {
      fault +=
          fmt::format("; {} of {} gradients are beyond their bounds", beyond, v.gradients.size());
    }
  }
  return fault;
}

}  // namespace distca
