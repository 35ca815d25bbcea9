#pragma once
// What `distca plan` is asked, and the request that it means.

#include <CLI/CLI.hpp>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "distca/base/error.h"
#include "distca/batch/batch_stream.h"
#include "distca/plan/choose_tolerance.h"
#include "distca/plan/plan.h"

namespace distca::cli {

struct PlanArguments {
  std::filesystem::path plan, workload, lengths, data, out;
  int workers = 0;
  int64_t tokens_per_worker = 131'072;
  BatchOptions batch{.seed = 1};  // tokens of 0: not given
  double validation_fraction = 0;
  PlanOptions options;
  std::string tolerance;  // a number, or auto; "": not given
  std::string profile = "pairs";
  int64_t heads = 32, kv_heads = 8, head_dim = 128, tensor_parallel = 8;
  std::string dtype = "bf16";
  int64_t window = 0;  // tokens a query sees, itself included; 0: all
  int64_t layers = 1;
  int64_t hidden_size = 0, intermediate_size = 0;  // 0: not given
  Cluster cluster{.capacity = {}};                 // nodes and caps
  double between_gbytes = 50, inside_gbytes = 0;   // GB/s; 0: as between
  bool compare = false, json = false, summary_json = false;
  std::string overlap = "ping-pong";  // a name of kOverlaps
  bool program = false;
  int rank = 0;               // whose program
  int nano_batches = 2;       // of the program's step
  bool redispatched = false;  // Q, K, V travel again for backward
};

/// All options that say what is planned, in groups.
void add_plan_options(CLI::App& verb, PlanArguments& arguments);
/// Those that say which program of a plan is shown.
void add_program_options(CLI::App& verb, PlanArguments& arguments);

/// Reads the input files. Throws Error(kUsage, kData or kPlan) for what cannot be planned. `note`
/// gets a line where the input has to repeat to fill the nano-batch.
PlanRequest request_from(const PlanArguments& arguments, std::string* note = nullptr);

/// `count` nano-batches of one batch, whose first is that of request_from. Of a workload, which is
/// one nano-batch, so many copies.
std::vector<NanoBatch> nano_batches_from(const PlanArguments& arguments, int count,
                                         std::string* note = nullptr);

/// --tolerance auto: with the speeds of --profile, else the stated ones, on the links of the
/// cluster. A model whose sizes are not given: hidden size = heads x head dimension, an MLP 3.5
/// times as wide (Llama 3).
ToleranceChoice chosen_tolerance(const PlanArguments& arguments, const PlanRequest& request);

/// Throws when every server reading every token would be more bytes than int64 holds, and for more
/// tokens or servers than a plan may have.
void check_sizes(const NanoBatch& nano_batch, const Cluster& cluster, const AttentionShape& shape,
                 ErrorKind kind);

}  // namespace distca::cli
