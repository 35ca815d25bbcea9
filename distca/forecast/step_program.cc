#include "distca/forecast/step_program.h"

#include <algorithm>
#include <array>
#include <utility>

#include "distca/base/error.h"

namespace distca {

int64_t StepOptions::loss_rows(const LlamaConfig& model) const {
  if (loss_chunk_tokens > 0) return loss_chunk_tokens;
  return std::max<int64_t>(512, loss_chunk_logits / model.vocab_size);
}

StepOptions step_options(const Config& config) {
  // Enough for fast matrix products, and on a GPU for what launches and sums of gradients cost.
  const int64_t chunk_rows = config.on_cuda() ? 8192 : 2048;
  const int64_t loss_chunk_logits = int64_t{1} << (config.on_cuda() ? 27 : 25);
  return {.overlap = config.train.overlap,
          .wide_gradients = config.exchange.wide_gradients,
          .kernel = kernel_request(config),
          .recompute = config.train.recompute,
          .chunk_rows = chunk_rows,
          .loss_chunk_tokens = config.train.loss_chunk_tokens,
          .loss_chunk_logits = loss_chunk_logits,
          .distributed_optimizer = config.parallel.use_distributed_optimizer,
          .overlap_grad_reduce = config.parallel.overlap_grad_reduce,
          .bucket_mb = config.parallel.bucket_mb,
          .tensor = config.tensor_ranks()};
}

namespace {

/// The operation whose backward adds to the gradient by a weight.
OpKind op_of(OpKind phase, bool is_divided) {
  if (!is_divided && phase == OpKind::kAttentionNorm) return OpKind::kPreAttention;
  const bool after = phase == OpKind::kOutProjection || phase == OpKind::kMlpNorm;
  return !is_divided && after ? OpKind::kPostAttention : phase;
}

/// MiB of a bucket: slices should be no shorter than what a wire carries well.
double bucket_mb(const StepOptions& options, int num_workers) {
  constexpr double kLeast = 25, kOfAWorker = 1;
  return options.bucket_mb > 0 ? options.bucket_mb : std::max(kLeast, kOfAWorker * num_workers);
}

/// The ranks of the step that hold a part of some stages' weights: in each replica, those with
/// these indices in tensor parallelism.
std::vector<int> holders_of(const Stage& stage, int replicas, const std::vector<int>& stages,
                            const Range& indices) {
  std::vector<int> ranks;
  for (const int index : stages) {
    for (int replica = 0; replica < replicas; ++replica) {
      for (int64_t tensor = indices.begin; tensor < indices.end; ++tensor)
        ranks.push_back((index * replicas + replica) * stage.tensor.size +
                        static_cast<int>(tensor));
    }
  }
  return ranks;
}

/// Adds elements that more ranks hold than the others do: to those before, if they are the same
/// ranks'. Those that are tied come first on both stages.
void add_shared(std::vector<SharedGradients>& all, const PhaseGradients& phase,
                std::vector<int> ranks) {
  const auto same = std::ranges::find(all, ranks, &SharedGradients::ranks);
  if (same == all.end()) {
    all.insert(phase.is_tied ? all.begin() : all.end(), {phase.elements, std::move(ranks)});
    return;
  }
  DISTCA_CHECK(same->elements.end <= phase.elements.begin, "elements {} to {} lie before others",
               phase.elements.begin, phase.elements.end);
  same->elements.end = phase.elements.end;
}

GradientExchangeRequest gradient_request(const LlamaConfig& model, const StepOptions& options,
                                         const Stage& stage, int rank, int replicas) {
  const int index = stage.tensor.index;
  std::vector<int> holders = holders_of(stage, replicas, {stage.index}, {index, index + 1});
  DISTCA_CHECK(std::ranges::find(holders, rank) != holders.end(),
               "rank {} does not hold the weights of stage {}, tensor index {}", rank, stage.index,
               index);
  const std::vector<Weight> weights = weight_table(model, stage);
  const FlatLayout layout = flat_layout(weights);
  const int64_t element = model.dtype == ScalarType::kFloat64 ? 8 : 4;
  GradientExchangeRequest request{
      .elements = layout.elements,
      .block = kFlatBlock,
      .element_bytes = element,
      .bucket_elements = static_cast<int64_t>(bucket_mb(options, replicas) * 0x1p20) / element,
      .rank = rank,
      .ranks = std::move(holders),
      .distributed_optimizer = options.distributed_optimizer,
      .overlaps = options.overlap_grad_reduce};
  for (size_t i = 0; i < weights.size(); ++i) {
    PhaseGradients phase{.phase = op_of(weights[i].phase, stage.tensor.size > 1),
                         .layer = std::max(weights[i].layer, -1),
                         .elements = {layout.begins[i], layout.begins[i] + weights[i].numel()},
                         .is_tied = weights[i].is_tied,
                         .holders = static_cast<int>(weights[i].holders.size())};
    request.phases.push_back(phase);
    if (phase.is_tied || phase.holders > 1) {
      const std::vector<int> stages =
          phase.is_tied ? std::vector{0, stage.count - 1} : std::vector{stage.index};
      add_shared(request.shared, phase, holders_of(stage, replicas, stages, weights[i].holders));
    }
    if (!weights[i].is_tied && model.tie_word_embeddings && weights[i].phase == OpKind::kEmbed) {
      phase.phase = OpKind::kLoss;
      request.phases.push_back(phase);
    }
  }
  // The layout leaves the rest of a last block empty.
  for (SharedGradients& shared : request.shared)
    shared.elements.end = round_up(shared.elements.end, kFlatBlock);
  return request;
}

}  // namespace

MainParams main_params_of(const StepOptions& options) {
  return options.distributed_optimizer ? MainParams::kElsewhere : MainParams::kHere;
}

std::shared_ptr<const GradientExchange> gradient_exchange(const LlamaConfig& model,
                                                          const StepOptions& options,
                                                          const Stage& stage, int rank,
                                                          int replicas, int64_t most_buckets) {
  const WeightOffsets offsets = parameter_offsets(model, stage, main_params_of(options));
  GradientExchangeRequest request = gradient_request(model, options, stage, rank, replicas);
  request.most_buckets = most_buckets;
  request.weight_offset = [&](int64_t at) { return offsets.of(at); };
  return std::make_shared<const GradientExchange>(make_gradient_exchange(request));
}

std::vector<Range> gradient_slices(const LlamaConfig& model, const StepOptions& options,
                                   const Stage& stage, int rank, int replicas) {
  return own_slices(gradient_request(model, options, stage, rank, replicas));
}

std::shared_ptr<const AttentionExchange> attention_exchange(const PlanIndex& index, int server,
                                                            const LlamaConfig& model,
                                                            const StepOptions& options,
                                                            size_t window) {
  return std::make_shared<const AttentionExchange>(make_attention_exchange(
      index.exchange(server), model.shape_of_rank(options.tensor, window).attention,
      exchange_types(model.dtype, options.wide_gradients)));
}

Program step_program(const LlamaConfig& model, const StepOptions& options, bool holds_weights,
                     ProgramRequest::Kind kind, std::vector<NanoPart> nano_batches,
                     std::shared_ptr<const GradientExchange> gradients, int rank) {
  return build_program({.overlap = options.overlap,
                        .kind = kind,
                        .holds_weights = holds_weights,
                        .server = rank / options.tensor,
                        .tensor = {.size = options.tensor, .index = rank % options.tensor},
                        .nano_batches = std::move(nano_batches),
                        .model = model.shape_of_rank(options.tensor),
                        .gradients = std::move(gradients),
                        .window_of_layer = model.window_of_layer(),
                        .least_share_pairs = options.least_share_pairs});
}

Program step_program(const LlamaConfig& model, const StepOptions& options, StagePart part,
                     ProgramRequest::Kind kind, std::shared_ptr<const GradientExchange> gradients,
                     int rank) {
  ModelShape shape = model.shape_of_rank(part.stage.tensor.size);
  shape.num_layers = part.stage.num_layers();
  return build_program({.overlap = options.overlap,
                        .kind = kind,
                        .holds_weights = !part.stage.layers.empty(),
                        .server = rank / part.stage.tensor.size,
                        .model = shape,
                        .gradients = std::move(gradients),
                        .stage = std::move(part),
                        .least_share_pairs = options.least_share_pairs});
}

int64_t p2p_bytes(const LlamaConfig& model, int64_t tokens) {
  return tokens * model.hidden_size * element_bytes(model.dtype);
}

}  // namespace distca
