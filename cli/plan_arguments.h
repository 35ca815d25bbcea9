#pragma once
// The options of `distca plan`, and the planning request that they mean.

#include <CLI/CLI.hpp>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "distca/base/error.h"
#include "distca/batch/batch_stream.h"
#include "distca/plan/choose_tolerance.h"
#include "distca/plan/pipeline/pipeline_plan.h"
#include "distca/plan/plan.h"

namespace distca::cli {

/// The options, with their defaults. `distca plan --help` explains each.
struct PlanArguments {
  /// The inputs. `out` is where the plan goes.
  std::filesystem::path plan, workload, lengths, out;
  std::string data;  // PREFIX or a blend
  int workers = 0;
  int64_t tokens_per_worker = 131'072;
  BatchOptions batch{.seed = 1};   // 0 tokens means not given.
  double validation_fraction = 0;  // share of the tokens, left out
  PlanOptions options;
  std::string tolerance;          // a number, or auto. Empty means not given.
  std::string profile = "pairs";  // pairs, the name of a profile, or its file
  int64_t heads = 32, kv_heads = 8, head_dim = 128, tensor_parallel = 8;
  std::string dtype = "bfloat16";
  int64_t window = 0;  // tokens that a query sees, itself included. 0 means all.
  int64_t layers = 1;
  int64_t hidden_size = 0, intermediate_size = 0;  // 0 means not given.
  Cluster cluster{.capacity = {}};                 // nodes and caps
  /// Speed of the links between and inside nodes, in GB/s. Inside, 0 means as fast as between.
  double between_gbytes = 50, inside_gbytes = 0;
  bool compare = false, json = false, summary_json = false;
  std::string overlap = "ping-pong";  // a name of kOverlaps
  bool program = false;               // show the program of a rank
  int rank = 0;                       // whose program
  int nano_batches = 2;               // nano-batches of the program's step
  int pipeline = 0;                   // stages. 0 means no pipeline.
  int micro_batches = 4;              // micro-batches of the pipeline's step
  std::string fill_ticks = "exact";   // a name of kFillTicks
  bool redispatched = false;          // Q, K, V are dispatched again for backward
};

/// Adds, in groups, all options that say what is planned.
void add_plan_options(CLI::App& verb, PlanArguments& arguments);
/// Adds the options that say which program of a plan is shown.
void add_program_options(CLI::App& verb, PlanArguments& arguments);
/// Throws Error(kUsage) if the programs of all ranks have more messages than are worth checking;
/// `fewer` is the option that makes them fewer, in addition to --layers.
void check_messages(int64_t messages, int num_ranks, std::string_view fewer);

/// Reads the input files and returns requests for the first `count` nano-batches of a batch. A
/// workload is a single nano-batch, so copies of it are returned. Throws Error(kUsage, kData or
/// kPlan) for what cannot be planned. If the input must be repeated to fill the nano-batch, `note`
/// gets a line that says so.
std::vector<PlanRequest> requests_from(const PlanArguments& arguments, int count,
                                       std::string* note = nullptr);

/// The model as a rank has it, with --layers layers, at least 1. If its sizes are not given, the
/// hidden size is heads x head dimension, and the MLP is 3.5 times as wide (Llama 3).
ModelShape model_shape(const PlanArguments& arguments, const AttentionShape& shape);

/// The choice of `--tolerance auto`, with the speeds of --profile (or stated ones) and the links of
/// the cluster, for model_shape.
ToleranceChoice chosen_tolerance(const PlanArguments& arguments, const PlanRequest& request);

/// Throws Error(kind) if a plan could become too large: more tokens or servers than a plan may
/// have, or more bytes than an int64 holds if every server read every token.
void check_sizes(const NanoBatch& nano_batch, const Cluster& cluster, const AttentionShape& shape,
                 ErrorKind kind);

}  // namespace distca::cli
