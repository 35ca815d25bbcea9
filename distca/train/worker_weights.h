#pragma once
// The state of a rank that holds weights: the model, or its stage of it, the optimizer, and the
// groups in which the workers agree on a step. Thread rule: one thread.
//
//     WorkerWeights weights(config, comm, run);
//     step.train(input, num_targets, update_of(&weights));
//     const std::vector<at::Tensor> trained =
//         gather_trained_weights(comm, &weights, run, config.model);

#include <functional>
#include <memory>
#include <vector>

#include "distca/comm/communicator.h"
#include "distca/comm/traced.h"
#include "distca/config/config.h"
#include "distca/config/run_grid.h"
#include "distca/model/llama.h"
#include "distca/train/optimizer.h"
#include "distca/train/weight_update.h"

namespace distca {

struct WorkerWeights {
  /// All ranks of `comm` that hold weights make one together. `exchange` is the rank's exchange of
  /// gradients. If it is null, it is made as the configuration gives it.
  WorkerWeights(const Config& config, Communicator& comm, const RunGrid& run,
                std::shared_ptr<const GradientExchange> exchange = nullptr);

  /// Records what the groups do in `recorder`. Null means that it is not recorded.
  void set_recorder(TraceRecorder* recorder);

  std::shared_ptr<const GradientExchange> gradients;
  Llama model;  // the rank's stage of it
  Optimizer optimizer;
  std::unique_ptr<Communicator> group;        // the ranks of the stage
  std::unique_ptr<Communicator> whole_group;  // all workers, null where each holds the whole model
  TracedCommunicator workers;                 // `group`, traced
  /// All ranks that hold weights, traced.
  TracedCommunicator all_workers;
};

/// The request of a step with these weights, whose learning rate and limits the caller sets.
/// Without weights, as on a dedicated server, it names none.
UpdateRequest update_of(WorkerWeights* weights);

/// Brings what the first replicas have of all weights, one tensor for each weight that they hold in
/// the type of a weight or its gradient, to rank 0. There it is returned in the order of the
/// model's table: what rank 0 holds whole as it is, the rest in memory of the host. Elsewhere
/// nothing is returned. The first replicas call it together; `all_workers` are all ranks that hold
/// weights. Each calls `meet` after every round of messages.
std::vector<at::Tensor> gather_parts(
    Communicator& all_workers, const RunGrid& run, const LlamaConfig& model,
    const std::vector<at::Tensor>& mine, const std::function<void()>& meet = [] {});

/// Brings the trained weights, as the main params are, to rank 0, as gather_parts() does; its own
/// lie where its gradients lay. All ranks of the run call it together, without `weights` where they
/// hold none.
std::vector<at::Tensor> gather_trained_weights(Communicator& comm, WorkerWeights* weights,
                                               const RunGrid& run, const LlamaConfig& model);

}  // namespace distca
