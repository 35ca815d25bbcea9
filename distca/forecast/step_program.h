#pragma once
// Makes the program of one rank's training or evaluation step from a model's shape, the options of
// a run and what was planned: which operations there are, what they exchange, and how gradients are
// summed. The step that plays it is train/step.h. It needs no PyTorch. Any thread may call the
// functions.

#include <cstdint>
#include <memory>
#include <vector>

#include "distca/base/integers.h"
#include "distca/config/config.h"
#include "distca/kernels/kernel_choice.h"
#include "distca/model/llama_config.h"
#include "distca/model/weight_table.h"
#include "distca/plan/attention_exchange.h"
#include "distca/plan/exchange.h"
#include "distca/program/gradient_exchange.h"
#include "distca/program/overlap.h"
#include "distca/program/program.h"

namespace distca {

/// How steps are run. The fields have the meaning of the configuration's keys.
struct StepOptions {
  Overlap overlap = Overlap::kPingPong;  // train.overlap: none, within or ping-pong
  /// dQ, dK and dV travel in the type in which they are summed, instead of the model's compute type
  /// (exchange.grad_dtype = accumulator). It costs more bytes and rounds less.
  bool wide_gradients = false;
  KernelRequest kernel = {};               // Shape, type and device are those of the model.
  Recompute recompute = Recompute::kNone;  // train.recompute
  int64_t chunk_rows = 2048;               // rows that train.recompute=full computes at a time
  int64_t loss_chunk_tokens = 0;           // train.loss_chunk_tokens
  int64_t loss_chunk_logits = 1 << 25;     // a chunk's, where loss_chunk_tokens is 0
  bool distributed_optimizer = false;      // parallel.use_distributed_optimizer
  bool overlap_grad_reduce = true;         // parallel.overlap_grad_reduce
  double bucket_mb = 0;                    // parallel.bucket_mb
  int tensor = 1;                          // ranks that divide the layers of a server
  /// The least (query, key) pairs of a share of core attention in parts (plan/attention_parts.h).
  int64_t least_share_pairs = kLeastSharePairs;

  /// Rows whose logits exist at the same time: loss_chunk_tokens or, if that is 0, as many as have
  /// loss_chunk_logits, but at least 512, since products of few rows with the head would wait for
  /// memory.
  int64_t loss_rows(const LlamaConfig& model) const;
};

/// The options that the configuration gives.
StepOptions step_options(const Config& config);

/// Returns where the main params of a model are kept that is trained with these options.
MainParams main_params_of(const StepOptions& options);

/// The exchange of gradients and weights of one of the workers: lists of four messages for each
/// bucket and other rank of its stage that holds the same part of each matrix, where rank = (stage
/// * replicas + replica) * stage.tensor.size + stage.tensor.index. Gradients and weights are those
/// of the stage. Those of a tied embedding go to the replicas of the other stage that holds it,
/// too, and those of weights that ranks of a server share to all who do. Where the options give
/// more than `most_buckets`, which is 2 or more, the buckets are larger.
std::shared_ptr<const GradientExchange> gradient_exchange(const LlamaConfig& model,
                                                          const StepOptions& options,
                                                          const Stage& stage, int rank,
                                                          int replicas,
                                                          int64_t most_buckets = kMostBuckets);
/// [bucket] The elements of the stage's flat gradients that the rank adds up.
std::vector<Range> gradient_slices(const LlamaConfig& model, const StepOptions& options,
                                   const Stage& stage, int rank, int replicas);

/// The messages and tasks of one server, or one of its ranks, under a plan, for a model of this
/// shape. `window` is the
/// index in model.windows() for which the plan was made.
std::shared_ptr<const AttentionExchange> attention_exchange(const PlanIndex& index, int server,
                                                            const LlamaConfig& model,
                                                            const StepOptions& options,
                                                            size_t window = 0);
/// The program of one rank. `holds_weights` is false on a dedicated server. Without `gradients`,
/// gradients are not summed. `nano_batches` has a part for each nano-batch and each of
/// model.windows() (ProgramRequest). Of `rank`, the rank's number, its place among
/// options.tensor neighbours that divide layers is all that matters.
Program step_program(const LlamaConfig& model, const StepOptions& options, bool holds_weights,
                     ProgramRequest::Kind kind, std::vector<NanoPart> nano_batches,
                     std::shared_ptr<const GradientExchange> gradients = nullptr, int rank = 0);

/// The program of one rank of a pipeline; its p2p messages are part of `part`
/// (p2p_bytes). `rank` as above.
Program step_program(const LlamaConfig& model, const StepOptions& options, StagePart part,
                     ProgramRequest::Kind kind,
                     std::shared_ptr<const GradientExchange> gradients = nullptr, int rank = 0);

/// The bytes of so many tokens' rows that a stage sends to another, for p2p_messages
/// (program/pipeline_order.h).
int64_t p2p_bytes(const LlamaConfig& model, int64_t tokens);

}  // namespace distca
