#pragma once
// What a rank has that holds weights: the model, its optimizer, and the group in which the workers
// agree on a step. Thread rule: one thread.

#include <memory>

#include "distca/comm/communicator.h"
#include "distca/comm/tags.h"
#include "distca/comm/traced.h"
#include "distca/model/llama.h"
#include "distca/train/config.h"
#include "distca/train/optimizer.h"
#include "distca/train/step.h"

namespace distca {

struct WorkerWeights {
  /// The first `num_workers` ranks of `comm` make one together.
  WorkerWeights(const Config& config, Communicator& comm, int num_workers)
      : gradients(gradient_exchange(config.model, step_options(config), comm.rank(), num_workers)),
        model(config.model, static_cast<uint64_t>(config.train.seed), comm.cuda_device(),
              masters_of(step_options(config))),
        optimizer(model, static_cast<uint64_t>(config.train.seed), config.optimizer, gradients),
        group(comm.split_first(num_workers)),
        workers(*group, kTracedTags + kTracedTagsEach) {}

  std::shared_ptr<const GradientExchange> gradients;
  Llama model;
  Optimizer optimizer;
  std::unique_ptr<Communicator> group;
  TracedCommunicator workers;  // `group`, traced
};

}  // namespace distca
