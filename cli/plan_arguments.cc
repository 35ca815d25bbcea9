#include "cli/plan_arguments.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "cli/options.h"
#include "distca/base/text.h"
#include "distca/batch/batch_stream.h"
#include "distca/batch/data_blend.h"
#include "distca/cost/attention_profile.h"
#include "distca/plan/plan_batch_input.h"
#include "distca/plan/scheduler.h"
#include "distca/program/overlap.h"

namespace distca::cli {
namespace {

constexpr int kMostWorkers = 65'536;
constexpr int64_t kMostCapacity = 1'000'000'000;

AttentionShape shape_from(const PlanArguments& arguments) {
  const int64_t tp = arguments.tensor_parallel;
  DISTCA_THROW_IF(arguments.heads % arguments.kv_heads != 0, ErrorKind::kUsage,
                  "--heads {} is not divisible by --kv-heads {}", arguments.heads,
                  arguments.kv_heads);
  DISTCA_THROW_IF(arguments.kv_heads % tp != 0, ErrorKind::kUsage,
                  "--kv-heads {} is not divisible by --tensor-parallel {}", arguments.kv_heads, tp);
  const int64_t bytes =
      element_bytes(scalar_type(arguments.dtype).value_or(ScalarType::kBFloat16));  // or float16
  return {.num_heads = arguments.heads / tp,
          .num_kv_heads = arguments.kv_heads / tp,
          .head_dim_qk = arguments.head_dim,
          .head_dim_v = arguments.head_dim,
          .element_bytes = bytes,
          .window_left = arguments.window - 1};
}

/// The documents of --data or --lengths.
struct Documents {
  std::vector<int64_t> lengths;  // [documents]
  DocumentSplit split;
  std::vector<StreamSet> sets{{}};
};

Documents documents_of(const PlanArguments& arguments) {
  const double fraction = arguments.validation_fraction;
  const uint64_t seed = arguments.batch.seed;
  if (arguments.data.empty()) {
    std::vector<int64_t> lengths = read_lengths(arguments.lengths);
    DocumentSplit split = split_documents(lengths, fraction, seed);
    return {.lengths = std::move(lengths), .split = std::move(split)};
  }
  const DataBlend data(arguments.data);
  return {
      .lengths = data.document_lengths(), .split = data.split(fraction, seed), .sets = data.sets()};
}

/// The first batch of the stream over these documents: a training's first too, if its seed,
/// nano_batch_tokens, nano_batches, max_document_tokens and validation_fraction are given.
std::vector<NanoBatch> first_batch(const Documents& documents, const PlanArguments& arguments,
                                   int nano_batches, std::string* note) {
  BatchOptions batch = arguments.batch;
  batch.nano_batches = nano_batches;
  int64_t& tokens = batch.nano_batch_tokens;
  if (tokens == 0) tokens = arguments.workers * arguments.tokens_per_worker;
  if (batch.max_document_tokens == 0) batch.max_document_tokens = tokens;
  DISTCA_THROW_IF(tokens > kMostTokens, ErrorKind::kUsage,
                  "--workers {} x --tokens-per-worker {} is a nano-batch of {} tokens; at most {}",
                  arguments.workers, arguments.tokens_per_worker, tokens, kMostTokens);
  int64_t present = 0;
  for (const int64_t document : documents.split.train) present += documents.lengths[document];
  if (note != nullptr && present > 0 && present < tokens) {
    *note = fmt::format(
        "{} has {} tokens for a nano-batch of {}: each document is planned {:.1f} times; lower "
        "{}\n",
        arguments.data.empty() ? arguments.lengths.string() : arguments.data,
        with_thousands(present), with_thousands(tokens),
        static_cast<double>(tokens) / static_cast<double>(present),
        arguments.batch.nano_batch_tokens > 0 ? "--nano-batch-tokens" : "--tokens-per-worker");
  }
  BatchStream stream(documents.lengths, documents.split.train, batch, documents.sets);
  std::vector<NanoBatch> result;
  for (NanoBatchSource& source : stream.next()) result.push_back(std::move(source.nano_batch));
  return result;
}

MemoryPrice memory_from(const PlanArguments& arguments, const AttentionShape& shape) {
  DISTCA_THROW_IF((arguments.hidden_size > 0) != (arguments.intermediate_size > 0),
                  ErrorKind::kUsage, "--hidden-size and --intermediate-size go together");
  if (arguments.hidden_size > 0) {
    return llama_memory(
        {.num_layers = arguments.layers,
         .hidden_size = arguments.hidden_size,
         .intermediate_size = arguments.intermediate_size / arguments.tensor_parallel,
         .attention = shape});
  }
  // Core attention itself keeps Q, K, V, O at home until backward, and Q, K, V at servers.
  const int64_t q = shape.q_token_bytes(), kv = shape.kv_token_bytes(), o = shape.o_token_bytes();
  return {.token_bytes = arguments.layers * (q + kv + o),
          .kept_query_bytes = arguments.layers * q,
          .kept_key_bytes = arguments.layers * kv};
}

Cluster cluster_from(const PlanArguments& arguments, const AttentionShape& shape, int workers) {
  Cluster cluster = arguments.cluster;
  cluster.num_workers = workers;
  if (cluster.capacity.empty()) cluster.capacity.assign(workers, 1);
  cluster.between.bytes_per_us = std::llround(arguments.between_gbytes * 1e3);
  cluster.inside.bytes_per_us = arguments.inside_gbytes > 0
                                    ? std::llround(arguments.inside_gbytes * 1e3)
                                    : cluster.between.bytes_per_us;
  cluster.memory = memory_from(arguments, shape);
  return cluster;
}

/// A line each: "greedy: the paper's ...".
template <typename Entries>
std::string listed(std::string text, const Entries& entries) {
  for (const auto& entry : entries) text += fmt::format("\n  {}: {}", entry.name, entry.summary);
  return text;
}

void add_input_options(CLI::App& verb, PlanArguments& arguments) {
  verb.add_option("--workload", arguments.workload,
                  "One nano-batch: JSON with ranks, tokens_per_rank, doc_lens");
  verb.add_option("--lengths", arguments.lengths,
                  "JSON list of document lengths: its first nano-batch; needs --workers");
  verb.add_option("--data", arguments.data,
                  "PREFIX of a data set, or \"WEIGHT PREFIX WEIGHT PREFIX ...\": its first "
                  "nano-batch; needs --workers")
      ->type_name("PREFIX");
  number(verb, "--workers", arguments.workers, 1, kMostWorkers, "Default: ranks of the workload");
  number(verb, "--tokens-per-worker", arguments.tokens_per_worker, 1, kMostTokens,
         "For --lengths and --data");
  number(verb, "--nano-batch-tokens", arguments.batch.nano_batch_tokens, 1, kMostTokens,
         "batch.nano_batch_tokens of a training; default: workers x tokens-per-worker");
  number(verb, "--max-document-tokens", arguments.batch.max_document_tokens, 1, kMostTokens,
         "batch.max_document_tokens: longer documents are split; default: the nano-batch's");
  number(verb, "--validation-fraction", arguments.validation_fraction, 0, 1,
         "data.validation_fraction: share of tokens left out; default: none");
  verb.add_option("--seed", arguments.batch.seed, "batch.seed: order and choice of the documents")
      ->capture_default_str();
}

void add_scheduler_options(CLI::App& verb, PlanArguments& arguments) {
  verb.add_option("--scheduler", arguments.options.scheduler,
                  listed("Who computes what", schedulers()))
      ->capture_default_str();
  verb.add_option("--layout", arguments.options.layout,
                  listed("Which tokens live where; default: the scheduler's own", layouts()));
  verb.add_option("--tolerance", arguments.tolerance,
                  "Load may exceed a server's share by this; auto: weighed under --overlap against "
                  "bytes that would not hide. Default: the scheduler's own")
      ->check(finite_range(0, 10) | CLI::IsMember({"auto"}));
  verb.add_flag("--split-kv", arguments.options.split_kv,
                "Tasks may have part of the keys: fewer bytes, results merged by LSE");
  verb.add_flag("--spread", arguments.options.spread,
                "Lowest largest send and receive; builds on --split-kv");
  verb.add_option("--profile", arguments.profile,
                  "What is balanced: pairs, or the time on h200 or as measured in a file of "
                  "`distca profile`")
      ->capture_default_str();
}

void add_cluster_options(CLI::App& verb, PlanArguments& arguments) {
  constexpr int64_t kMostBytes = int64_t{1} << 60;
  Cluster& cluster = arguments.cluster;
  verb.add_option("--capacity", cluster.capacity,
                  "Share of the load of each server, workers first; more than the workers are "
                  "dedicated servers. Default: 1 a worker")
      ->delimiter(',')
      ->check(whole_range(0, kMostCapacity));
  number(verb, "--ranks-per-node", cluster.ranks_per_node, 0, kMostWorkers,
         "Ranks that share a node; 0: each is one");
  number(verb, "--between-gbytes", arguments.between_gbytes, 1e-3, 1e6,
         "GB/s of one rank to another node");
  number(verb, "--inside-gbytes", arguments.inside_gbytes, 1e-3, 1e6,
         "GB/s of one rank inside its node; default: as between nodes");
  number(verb, "--max-tokens-per-worker", cluster.max_tokens_per_worker, 0, kMostTokens,
         "Cap; 0: none");
  number(verb, "--max-send-bytes", cluster.max_send_bytes, 0, kMostBytes,
         "Cap on Q, K, V one rank sends: a layer, forward; 0: none");
  number(verb, "--max-receive-bytes", cluster.max_receive_bytes, 0, kMostBytes,
         "Cap on Q, K, V one rank receives; 0: none");
  number(verb, "--max-memory-bytes", cluster.max_memory_bytes, 0, kMostBytes,
         "Cap on what core attention keeps until backward on one rank; 0: none");
}

void add_shape_options(CLI::App& verb, PlanArguments& arguments) {
  constexpr int64_t kMost = int64_t{1} << 16;
  number(verb, "--heads", arguments.heads, 1, kMost, "Query heads");
  number(verb, "--kv-heads", arguments.kv_heads, 1, kMost, "Key and value heads");
  number(verb, "--head-dim", arguments.head_dim, 1, kMost, "Of queries, keys and values");
  number(verb, "--tensor-parallel", arguments.tensor_parallel, 1, kMost,
         "Ranks that share the heads");
  number_type(verb, "--dtype", arguments.dtype, {"bfloat16", "float16", "float32", "float64"},
              "What travels");
  number(verb, "--window", arguments.window, 0, kMostTokens,
         "Tokens a query sees, itself included; 0: all");
  number(verb, "--layers", arguments.layers, 0, kMost,
         "Layers whose memory is counted; 0: none, as in a training's plans");
  number(verb, "--hidden-size", arguments.hidden_size, 1, kMost,
         "With --intermediate-size: memory of all activations of Llama's layers, not only of Q, K, "
         "V, O");
  number(verb, "--intermediate-size", arguments.intermediate_size, 1, kMost, "Of the MLP");
}

}  // namespace

void add_plan_options(CLI::App& verb, PlanArguments& arguments) {
  add_input_options(verb, arguments);
  add_scheduler_options(verb, arguments);
  add_cluster_options(verb, arguments);
  add_shape_options(verb, arguments);
}

void add_program_options(CLI::App& verb, PlanArguments& arguments) {
  verb.add_flag("--program", arguments.program,
                "Print the operations of one rank in a training step of --layers layers "
                "(docs/program.md), once those of all ranks are found valid");
  verb.add_option("--overlap", arguments.overlap, listed("Order of operations", kOverlaps))
      ->check(CLI::IsMember(overlap_names()))
      ->capture_default_str();
  number(verb, "--rank", arguments.rank, 0, kMostWorkers, "Whose program; default: rank 0's");
  number(verb, "--nano-batches", arguments.nano_batches, 1, 64,
         "Of the step; a workload or plan, which is one nano-batch, is taken so many times");
  verb.add_flag("--redispatch", arguments.redispatched,
                "Q, K, V travel again for backward instead of being kept by the servers");
  number(verb, "--pipeline", arguments.pipeline, 1, 64,
         "Stages of a pipeline, over which --layers and --workers are divided: shows its ticks, "
         "too (docs/planner.md)");
  number(verb, "--micro-batches", arguments.micro_batches, 1, 64,
         "Of the pipeline's step; under ping-pong each is two nano-batches");
  std::vector<std::string> fill_ticks;
  for (const FillTicksName& one : kFillTicks) fill_ticks.emplace_back(one.name);
  verb.add_option("--fill-ticks", arguments.fill_ticks,
                  listed("How ticks with an idle stage are planned", kFillTicks))
      ->check(CLI::IsMember(fill_ticks))
      ->capture_default_str();
}

void check_messages(int64_t messages, int num_ranks, std::string_view fewer) {
  constexpr int64_t kMostMessages = int64_t{1} << 24;
  DISTCA_THROW_IF(messages > kMostMessages, ErrorKind::kUsage,
                  "--program checks the {} messages of all {} ranks' programs; at most {}: fewer "
                  "--layers or {}",
                  messages, num_ranks, kMostMessages, fewer);
}

void check_sizes(const NanoBatch& nano_batch, const Cluster& cluster, const AttentionShape& shape,
                 ErrorKind kind) {
  const int64_t tokens = nano_batch.num_tokens();
  DISTCA_THROW_IF(tokens > kMostTokens || cluster.num_servers() > kMostWorkers, kind,
                  "{} tokens on {} servers; at most {} on {}", tokens, cluster.num_servers(),
                  kMostTokens, kMostWorkers);
  const int64_t capacity = *std::ranges::max_element(cluster.capacity);
  DISTCA_THROW_IF(capacity > kMostCapacity, kind, "a capacity of {}; at most {}", capacity,
                  kMostCapacity);
  const int64_t token_bytes =
      shape.q_token_bytes() + shape.kv_token_bytes() + shape.o_token_bytes();
  const double most = static_cast<double>(tokens) * cluster.num_servers() *
                      static_cast<double>(std::max({token_bytes, cluster.memory.token_bytes,
                                                    cluster.memory.kept_query_bytes,
                                                    cluster.memory.kept_key_bytes}));
  DISTCA_THROW_IF(most >= 0x1p60, kind,
                  "{} tokens x {} servers x {} of Q, K, V, O a token are more than can be counted",
                  tokens, cluster.num_servers(), human_bytes(token_bytes));
}

std::vector<PlanRequest> requests_from(const PlanArguments& arguments, int count,
                                       std::string* note) {
  std::vector<NanoBatch> nano_batches;
  int workers = arguments.workers;
  if (!arguments.workload.empty()) {
    const Workload workload = read_workload(arguments.workload);
    nano_batches.assign(count, workload.nano_batch);
    if (workers == 0) workers = workload.ranks;
  } else {
    DISTCA_THROW_IF(workers == 0, ErrorKind::kUsage, "--lengths and --data need --workers N");
    nano_batches = first_batch(documents_of(arguments), arguments, count, note);
  }
  PlanRequest request;
  request.shape = shape_from(arguments);
  request.cluster = cluster_from(arguments, request.shape, workers);
  request.options = arguments.options;
  if (!arguments.tolerance.empty() && arguments.tolerance != "auto") {
    request.options.tolerance_ppm = std::llround(std::stod(arguments.tolerance) * 1e6);
  }
  for (const NanoBatch& nano_batch : nano_batches)
    check_sizes(nano_batch, request.cluster, request.shape, ErrorKind::kUsage);
  request.profile = profile_by_name(arguments.profile);
  std::vector<PlanRequest> requests(count, request);
  for (int i = 0; i < count; ++i) requests[i].nano_batch = std::move(nano_batches[i]);
  return requests;
}

ModelShape model_shape(const PlanArguments& arguments, const AttentionShape& shape) {
  const int64_t hidden =
      arguments.hidden_size > 0 ? arguments.hidden_size : arguments.heads * arguments.head_dim;
  const int64_t intermediate =
      arguments.intermediate_size > 0 ? arguments.intermediate_size : hidden * 7 / 2;
  return {.num_layers = std::max<int64_t>(1, arguments.layers),
          .hidden_size = hidden,
          .intermediate_size = intermediate / arguments.tensor_parallel,
          .attention = shape};
}

ToleranceChoice chosen_tolerance(const PlanArguments& arguments, const PlanRequest& request) {
  const ModelShape layers = model_shape(arguments, request.shape);
  LayerTimeOptions options;
  options.speeds = stated_speeds(layers, request.cluster.num_servers(), request.profile.get());
  options.hiding = hiding_of(overlap_of(arguments.overlap));
  options.layers = layers.num_layers;
  return choose_tolerance(request, options);
}

}  // namespace distca::cli
