#pragma once
// A small Llama's step on any number of workers and servers, planned and played in any way, and how
// far two outcomes are apart. Ranks are threads.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "distca/comm/thread_group.h"
#include "distca/model/llama.h"
#include "distca/plan/plan.h"
#include "distca/train/step.h"

namespace distca::parity {

/// The nano-batches of a step.
struct Documents {
  const char* name;
  std::vector<std::vector<int64_t>> nano_batches;  // tokens of each document
  bool goes_on = false;  // pieces: the last token has the original's next one as its target
};
/// The documents and their reverse.
Documents both_ways(const char* name, std::vector<int64_t> lengths, bool goes_on = false);
const std::vector<Documents>& batches();

/// A way to plan: a line of planners().
struct Planner {
  std::string name;
  std::string scheduler;
  std::string layout = {};  // empty for the scheduler's own
  bool split_kv = false;
  bool spread = false;
  bool cut_tasks = false;  // cut the scheduler's tasks at random by keys (split-KV)
};
const std::vector<Planner>& planners();
const Planner& planner(const std::string& name);

/// The ranks that serve attention: a line of servers().
struct Servers {
  const char* name;
  /// The capacity of each worker. 0 means that workers do not serve.
  int64_t worker_capacity = 1;
  std::vector<int64_t> dedicated = {};  // capacities of the dedicated servers
};
const std::vector<Servers>& servers();
const Servers& servers(const std::string& name);

/// How a step is played.
struct Play {
  Overlap overlap = Overlap::kNone;
  bool redispatched = false;  // Q, K, V travel again for backward
  Servers servers = {"in_place"};
};
/// Every schedule x kept and redispatched keys x line of servers().
const std::vector<Play>& plays();
/// The name of a play in names of tests: letters, digits, underscores.
std::string name_of(const Play& play);

/// A Llama with 4 query heads and `num_kv_heads` heads of K and V.
LlamaConfig small_llama(int64_t num_kv_heads, ScalarType dtype, int64_t num_layers = 2);

/// A nano-batch's plan, checked by the validator. `window`: for the layers that have this one of
/// model.windows(), on the layout of `first`, the plan for the first one.
Plan plan_by(const Planner& planner, const LlamaConfig& model, const std::vector<int64_t>& lengths,
             int workers, const Servers& servers, size_t window = 0, const Plan* first = nullptr);

/// Tokens of a worker's part of a nano-batch, made from a seed. `goes_on`: Documents::goes_on.
LocalTokens make_tokens(const NanoBatch& nano_batch, const std::vector<Segment>& segments,
                        int64_t vocab_size, bool goes_on);

struct Outcome {
  double loss = 0;  // nats, summed over all targets
  /// Gradients of all parameters, summed over workers. An evaluation has none.
  std::vector<at::Tensor> gradients;
  int64_t bytes_sent = 0;  // by all ranks
};

/// A step to run.
struct StepRun {
  LlamaConfig model;
  Documents documents;
  int workers = 1;
  std::string planner = "local";
  Play play = {};
  StepOptions options = {};  // its schedule is the play's
  ThreadDevice device = {};
  bool evaluate = false;  // forward and loss only
  /// Called on the thread of each rank before its step; what it gives lives as long as the step.
  std::function<std::shared_ptr<void>(int rank, Step&)> watch = {};
  /// [rank] Puts a fault into what the ranks do, behind the validators' back.
  std::function<void(std::vector<StepInput>&)> change = nullptr;
};
/// Plays it on ranks as threads, after the validators have seen plans and programs.
Outcome run(const StepRun& what);

/// The largest relative difference of the loss and of any gradient (train/same_result.h). Gradients
/// that are zero in `want` do not count.
double largest_difference(const Outcome& got, const Outcome& want);
void expect_same(const Outcome& got, const Outcome& want, double bound, double zero_bound,
                 const std::string& what);
void expect_same_bits(const Outcome& got, const Outcome& want, const std::string& what);

/// How far two runs of small_llama may be apart that round differently.
double format_bound(ScalarType dtype);

}  // namespace distca::parity
