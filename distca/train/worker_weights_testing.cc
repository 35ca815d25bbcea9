#include "distca/train/worker_weights_testing.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <memory>

#include "distca/comm/aten_types.h"
#include "distca/comm/thread_group.h"
#include "distca/model/weights_file.h"

namespace distca::testing {

std::string Way::name() const {
  return fmt::format("{}x{}{}{}{}{}{}", stages, replicas,
                     tensor > 1 ? fmt::format("x{}", tensor) : "", zero ? " ZeRO-1" : "",
                     dedicated > 0 ? " and a server" : "", layers.empty() ? "" : " uneven",
                     tied ? " tied" : "");
}

RunGrid grid_of(const Config& config, const Way& way) {
  RunGrid run = run_grid(config, way.stages * way.replicas);
  run.tensor = way.tensor;
  return run;
}

Config config_of(const Way& way, const std::filesystem::path& run, const std::string& dtype,
                 const std::vector<std::string>& more) {
  std::vector<std::string> words = {
      "comm.backend=threads",
      "train.output_dir=" + run.string(),
      way.tied ? "model.vocab_size=997" : "model.vocab_size=97",  // several blocks
      "model.hidden_size=40",
      "model.intermediate_size=72",
      "model.num_hidden_layers=4",
      "model.num_attention_heads=4",
      "model.num_key_value_heads=2",
      "model.head_dim=16",
      "model.dtype=" + dtype,
      "parallel.bucket_mb=0.02",
      fmt::format("parallel.use_distributed_optimizer={}", way.zero),
      fmt::format("parallel.pipeline_model_parallel_size={}", way.stages),
      fmt::format("model.tie_word_embeddings={}", way.tied),
      fmt::format("servers.dedicated={}", way.dedicated)};
  if (!way.layers.empty()) words.push_back("parallel.pipeline_layers=" + way.layers);
  words.insert(words.end(), more.begin(), more.end());
  return load_config("", words);
}

at::Tensor known_state(const StoredTensor& weight, StatePart part) {
  double shift = 1000.0 * static_cast<double>(part);
  for (const char letter : weight.name) shift = 0.5 * shift + letter;
  const at::Tensor all = (at::arange(weight.numel(), at::kDouble) + shift).sin();
  return all.to(aten_type(weight.type)).view(weight.shape);
}

void set_known_state(WorkerWeights& weights) {
  const std::vector<StoredTensor> stored =
      stored_weights(weights.model.config(), weights.model.stage());
  for (size_t i = 0; i < stored.size(); ++i) {
    for (const StatePart part : kStateParts)
      weights.optimizer.load(part, i,
                             part_of(weights.model.weights()[i].box, known_state(stored[i], part)));
  }
  weights.optimizer.set_updates(kKnownUpdates);
}

void on_ranks(const Config& config, const Way& way,
              const std::function<void(Communicator&, const RunGrid&, WorkerWeights*)>& body) {
  const RunGrid run = grid_of(config, way);
  run_ranks(run.num_ranks(), {.timeout_s = 300}, [&](Communicator& comm) {
    at::set_num_threads(1);
    std::unique_ptr<WorkerWeights> weights;
    if (comm.rank() < run.num_workers())
      weights = std::make_unique<WorkerWeights>(config, comm, run);
    body(comm, run, weights.get());
  });
}

}  // namespace distca::testing
