#pragma once
// Plain PyTorch (rival.py), which ours is compared with: its processes wait in a read while others
// measure. Thread rule: one thread.

#include <deque>
#include <filesystem>
#include <string>
#include <vector>

#include "bench/child_process.h"
#include "bench/step_arms.h"
#include "distca/base/json.h"

namespace distca::bench {

/// The interpreter that `make setup` installs PyTorch for.
extern const char* const kPython;

/// Processes of one kind of rival.py, with a folder of their own.
class Rival {
 public:
  /// Starts none yet. One that says nothing for `timeout_s` seconds is an error.
  Rival(std::string kind, std::string python, double timeout_s);
  ~Rival();

  /// Saves the model with the weights that it has now. Returns the folder, as rival.py takes it.
  std::filesystem::path save(const Llama& llama);
  /// Starts a process. rival.py says what its arguments are, besides the optimizer's.
  void start(Json arguments, const Config::Optimizer& optimizer);

  const std::filesystem::path& folder() const { return folder_; }
  /// Sends a command to every process, with arguments[process], and returns their answers.
  std::vector<Json> ask(const std::string& command, const std::vector<Json>& arguments);

 private:
  std::string kind_, python_;
  double timeout_s_;
  std::filesystem::path folder_;
  std::deque<ChildProcess> processes_;
};

/// Documents as fixed packing gives them to plain data parallelism: in order, cut where a worker's
/// share ends; the rest of a cut document begins a new one, for no other worker has its context.
struct FixedPacking {
  BatchLengths pieces;                                    // [nano-batch] of all workers, in order
  std::vector<std::vector<std::vector<int64_t>>> worker;  // [nano-batch][worker] pieces' indices
};
FixedPacking fixed_packing(const LlamaConfig& model, const BatchLengths& batch, int num_workers);

/// One step of the rival "ddp" over the documents of `packing`, which leaves its weights updated.
/// [rank]
std::vector<PlayedStep> ddp_step(Rival& ddp, const FixedPacking& packing, int64_t vocab_size);

}  // namespace distca::bench
