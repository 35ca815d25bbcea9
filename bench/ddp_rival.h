#pragma once
// PyTorch DDP over Gloo (ddp_rival.py) as an arm: its processes, driven by rank 0, wait in a read
// while others measure. Thread rule: one thread.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "bench/child_process.h"
#include "bench/step_arms.h"
#include "distca/base/json.h"

namespace distca::bench {

/// Documents as fixed packing gives them to plain data parallelism: in order, cut where a worker's
/// share ends; the rest of a cut document begins a new one, for no other worker has its context.
struct FixedPacking {
  BatchLengths pieces;                                    // [nano-batch] of all workers, in order
  std::vector<std::vector<std::vector<int64_t>>> worker;  // [nano-batch][worker] pieces' indices
};
FixedPacking fixed_packing(const LlamaConfig& model, const BatchLengths& batch, int num_workers);

/// The options of torch.optim.AdamW and of clipping, under the keys of [optimizer].
Json optimizer_json(const Config::Optimizer& options);

class DdpRival {
 public:
  /// Starts a process a rank, pinned to cores[rank], all with the weights that `llama` has now.
  DdpRival(const std::string& python, const std::string& script, const std::vector<int>& cores,
           const Llama& llama);
  ~DdpRival();

  /// One step over the documents of `packing`, which leaves their weights updated. [rank]
  std::vector<PlayedStep> run(const FixedPacking& packing);

 private:
  Json answer(size_t rank, const std::string& awaited);

  int64_t vocab_size_;
  std::filesystem::path folder_;  // folder of the weights and of the ranks' store
  std::vector<std::unique_ptr<ChildProcess>> ranks_;
};

}  // namespace distca::bench
