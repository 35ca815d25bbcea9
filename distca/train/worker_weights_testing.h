#pragma once
// Ranks as threads that hold the weights of a small model on some grid, with state of which every
// element is known.

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "distca/checkpoint/index.h"
#include "distca/train/worker_weights.h"

namespace distca::testing {

/// How a model is divided among ranks.
struct Way {
  int stages = 1, replicas = 1, tensor = 1;
  bool zero = false;  // ZeRO-1
  int dedicated = 0;
  std::string layers = {};  // parallel.pipeline_layers
  bool tied = false;        // model.tie_word_embeddings

  int workers() const { return stages * replicas * tensor; }
  std::string name() const;
};

RunGrid grid_of(const Config& config, const Way& way);

/// Four layers, and several buckets of gradients. `run` is the folder.
Config config_of(const Way& way, const std::filesystem::path& run,
                 const std::string& dtype = "float32", const std::vector<std::string>& more = {});

/// Part of a weight's state, which bfloat16 would round.
at::Tensor known_state(const StoredTensor& weight, StatePart part);
void set_known_state(WorkerWeights& weights);
inline constexpr int64_t kKnownUpdates = 7;  // Optimizer::updates() of that state

/// Calls `body` on each rank; a dedicated server has no weights.
void on_ranks(const Config& config, const Way& way,
              const std::function<void(Communicator&, const RunGrid&, WorkerWeights*)>& body);

}  // namespace distca::testing
