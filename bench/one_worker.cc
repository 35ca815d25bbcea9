#include "bench/one_worker.h"

#include <ATen/Parallel.h>

#include "distca/base/clock.h"
#include "distca/base/scalar_type.h"
#include "distca/forecast/data_split.h"

namespace distca::bench {
Json TimedStep::seconds() const {
  Json all = parts;
  all.update({{"elapsed", elapsed},
              {"step", step},
              {"attention", parts.at("attention forward") + parts.at("attention backward")}});
  return all;
}

OneWorker::OneWorker(const Config& config, Communicator& comm)
    : config_(config),
      comm_(comm),
      data_(config.data.prefix),
      stream_(training_stream(config, data_, split_data(config, data_))),
      model_(config.model, static_cast<uint64_t>(config.train.seed), comm.cuda_device()),
      gradients_(gradient_exchange(config.model, step_options(config), comm.rank(), comm.size())),
      optimizer_(model_, static_cast<uint64_t>(config.train.seed), config.optimizer, gradients_) {
  at::set_num_threads(static_cast<int>(config.train.threads_per_rank));
}

PlannedBatch OneWorker::next_batch() {
  return plan_batch(config_, data_, {stream_.next()}, comm_.rank(), comm_.size(), {}, gradients_);
}

size_t OneWorker::add(KernelChoice kernel) {
  StepOptions options = step_options(config_);
  options.kernel = kernel;
  steps_.push_back(std::make_unique<Step>(config_.model, &model_, comm_, options));
  return steps_.size() - 1;
}

TimedStep OneWorker::run(size_t index, const PlannedBatch& batch) {
  const bool one_thread = config_.train.threads_per_rank == 1;
  const auto now = one_thread ? process_processor_seconds : steady_seconds;
  TimedStep timed;
  const Stopwatch watch;
  const double begin = now();
  optimizer_.zero_gradients();
  timed.parts["optimizer"] = now() - begin;
  const StepResult result = steps_[index]->train(batch.input, batch.figures.targets,
                                                 {.optimizer = &optimizer_,
                                                  .workers = &comm_,
                                                  .max_grad_norm = config_.optimizer.max_grad_norm,
                                                  .lr = config_.optimizer.lr});
  timed.gradient_norm = result.sum.norm;
  timed.step = now() - begin;
  timed.elapsed = watch.seconds();
  timed.loss = result.loss_sum / static_cast<double>(batch.figures.targets);
  const auto& seconds = one_thread ? result.times.processor_seconds : result.times.seconds;
  const auto of = [&](OpKind kind, Pass pass) {
    return seconds[static_cast<int>(kind)][static_cast<int>(pass)][static_cast<int>(OpPart::kPlay)];
  };
  timed.parts["attention forward"] = of(OpKind::kCoreAttention, Pass::kForward);
  timed.parts["attention backward"] = of(OpKind::kCoreAttention, Pass::kBackward);
  for (const OpKind kind : {OpKind::kGradAdd, OpKind::kGradNorm, OpKind::kOptimizer})
    timed.parts["optimizer"] += of(kind, Pass::kBackward);
  for (const OpKind kind :
       {OpKind::kEmbed, OpKind::kPreAttention, OpKind::kPostAttention, OpKind::kLoss}) {
    timed.parts[std::string(op_name(kind))] = of(kind, Pass::kForward) + of(kind, Pass::kBackward);
  }
  return timed;
}

Json one_worker_settings(const Config& config, int rounds) {
  return {{"rounds", rounds},
          {"threads", config.train.threads_per_rank},
          {"nano_batches", config.batch.nano_batches},
          {"nano_batch_tokens", config.batch.nano_batch_tokens},
          {"model", config.model.to_hugging_face(0)},
          {"type", short_name(config.model.dtype)}};
}

}  // namespace distca::bench
