#pragma once
// PyTorch's DistributedDataParallel (rival.py), which ours is compared with: its processes wait in
// a read while others measure. Thread rule: one thread.

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

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

class DdpRival {
 public:
  /// Starts a process a rank, pinned to cores[rank], all with the weights that `llama` has now.
  DdpRival(const Llama& llama, const std::vector<int>& cores);

  /// One step over the documents of `packing`, which leaves the weights updated. [rank]. Throws
  /// Error(kIo) where a process has ended, or says nothing for two minutes.
  std::vector<PlayedStep> step(const FixedPacking& packing);

 private:
  struct Process {
    std::FILE *commands, *answers;
  };
  /// Processes that run, and the folder by which they are reached.
  struct Started {
    explicit Started(std::filesystem::path folder);
    Started(const Started&) = delete;
    Started& operator=(const Started&) = delete;
    /// Closes their standard input, which ends them, and removes the folder. A process that waits
    /// for another one ends by the timeout of that wait.
    ~Started();

    const std::filesystem::path folder;
    std::vector<Process> processes;
  };
  /// Sends a command to every process, with arguments[process], and returns their answers.
  std::vector<Json> ask(const std::string& command, const std::vector<Json>& arguments);

  const int64_t vocab_size_;
  Started started_;
};

}  // namespace distca::bench
