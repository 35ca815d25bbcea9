#include "distca/train/step.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "distca/base/error.h"
#include "distca/kernels/rows.h"
#include "distca/runtime/device_clock.h"
#include "distca/train/config.h"
#include "distca/train/hand_overs.h"
#include "distca/train/nano_phases.h"
#include "distca/train/step_losses.h"

namespace distca {
namespace {

class Player final : public OpPlayer {
 public:
  Player(CoreAttention& attention, HandOvers& hand_overs, WeightUpdate& update,
         const OpWatch& watch)
      : attention_(attention), hand_overs_(hand_overs), update_(update), watch_(watch) {}

  /// The next nano-batch. A dedicated server has none.
  void add(const Llama& model, const LocalTokens& tokens, const NanoPhases::Options& options) {
    nanos_.push_back(std::make_unique<NanoPhases>(
        model, attention_, static_cast<int>(nanos_.size()), tokens, options));
    losses_.add(tokens);
  }

  void play(const Op& op) override {
    tell(op, false);
    compute(op);
    tell(op, true);
  }
  // Gradients and weights travel from where they are, and land where they are wanted.
  void pack(const Op& op) override {
    tell(op, false);
    if (is_of_weights(op)) return;
    op.kind == OpKind::kHandOver ? pack_hand_over(op) : attention_.pack(op);
  }
  void land(const Op& op) override {
    if (is_of_weights(op)) return;
    op.kind == OpKind::kHandOver ? land_hand_over(op) : attention_.land(op);
  }
  void issue(const Op& op) override {
    with_its_part(op, [&](auto& part) { part.issue(op); });
    tell(op, true);
  }
  void wait(const Op& op) override {
    with_its_part(op, [&](auto& part) { part.wait(op); });
  }
  void wait_sent(const Op& op) override {
    with_its_part(op, [&](auto& part) { part.wait_sent(op); });
  }

  StepLosses& losses() { return losses_; }

 private:
  void tell(const Op& op, bool is_over) {
    if (watch_) watch_(op, is_over);
  }

  void compute(const Op& op) {
    if (op.kind == OpKind::kCoreAttention) return attention_.compute(op);
    if (is_of_weights(op)) {
      return update_.play(op, op.kind == OpKind::kGradNorm ? losses_.sum() : 0);
    }
    op.pass == Pass::kForward ? play_forward(op) : play_backward(op);
  }

  /// Calls `work` with what plays a communication.
  template <typename Work>
  void with_its_part(const Op& op, const Work& work) {
    if (is_of_weights(op)) return work(update_);
    op.kind == OpKind::kHandOver ? work(hand_overs_) : work(attention_);
  }

  void pack_hand_over(const Op& op) {
    if (op.is_receive) return;
    std::unique_ptr<NanoPhases>& nano = nanos_[op.nano_batch];
    const bool forward = op.pass == Pass::kForward;
    hand_overs_.pack(op, forward ? nano->take_output() : nano->take_gradient());
    if (!forward || !at::GradMode::is_enabled()) nano.reset();
  }

  void land_hand_over(const Op& op) {
    if (!op.is_receive) return;
    NanoPhases& nano = *nanos_[op.nano_batch];
    const at::Tensor rows = hand_overs_.land(op);
    op.pass == Pass::kForward ? nano.begin(rows) : nano.begin_backward(rows);
  }

  static bool is_of_weights(const Op& op) {
    return op.bucket >= 0 || op.kind == OpKind::kGradNorm || op.kind == OpKind::kOptimizer;
  }

  void play_forward(const Op& op) {
    NanoPhases& nano = *nanos_[op.nano_batch];
    switch (op.kind) {
      case OpKind::kEmbed:
        return nano.embed();
      case OpKind::kPreAttention:
        return nano.pre_attention(op.layer);
      case OpKind::kPostAttention:
        return nano.post_attention(op.layer);
      case OpKind::kLoss:
        return play_loss(op.nano_batch);
      default:
        DISTCA_CHECK(false, "no forward operation: {}", describe(op));
    }
  }

  void play_loss(int nano_batch) {
    std::unique_ptr<NanoPhases>& nano = nanos_[nano_batch];
    if (at::GradMode::is_enabled()) return losses_.put(nano_batch, nano->loss());
    at::Tensor of_tokens;
    const at::Tensor sums = nano->evaluated_loss(&of_tokens);
    losses_.put(nano_batch, sums, of_tokens);
    nano.reset();
  }

  void play_backward(const Op& op) {
    NanoPhases& nano = *nanos_[op.nano_batch];
    switch (op.kind) {
      case OpKind::kLoss:
        return;  // done in forward
      case OpKind::kPostAttention:
        return nano.post_attention_backward(op.layer);
      case OpKind::kPreAttention:
        return nano.pre_attention_backward(op.layer);
      case OpKind::kEmbed:
        nano.embed_backward();
        return nanos_[op.nano_batch].reset();
      default:
        DISTCA_CHECK(false, "no backward operation: {}", describe(op));
    }
  }

  CoreAttention& attention_;
  HandOvers& hand_overs_;
  WeightUpdate& update_;
  const OpWatch& watch_;
  StepLosses losses_;
  std::vector<std::unique_ptr<NanoPhases>> nanos_;  // several are alive at a time
};

/// Returns true if servers get Q, K, V again for backward of a nano-batch.
bool keys_travel_again(const Program& program, int nano_batch) {
  return std::ranges::any_of(program.ops, [&](const Op& op) {
    return op.kind == OpKind::kRedispatch && op.nano_batch == nano_batch;
  });
}

}  // namespace

int64_t StepOptions::loss_rows(const LlamaConfig& model) const {
  if (loss_chunk_tokens > 0) return loss_chunk_tokens;
  return std::max<int64_t>(512, (int64_t{1} << 25) / model.vocab_size);
}

StepOptions step_options(const Config& config) {
  // Enough for fast matrix products, and on a GPU for what launches and sums of gradients cost.
  const int64_t chunk_rows = config.on_cuda() ? 8192 : 2048;
  return {.overlap = config.train.overlap,
          .wide_gradients = config.exchange.wide_gradients,
          .kernel = config.attention.kernel,
          .threads = static_cast<int>(config.train.threads_per_rank),
          .recompute = config.train.recompute,
          .chunk_rows = chunk_rows,
          .loss_chunk_tokens = config.train.loss_chunk_tokens,
          .distributed_optimizer = config.parallel.use_distributed_optimizer,
          .overlap_grad_reduce = config.parallel.overlap_grad_reduce,
          .bucket_mb = config.parallel.bucket_mb};
}

namespace {

OpKind op_of(WeightPhase phase) {
  switch (phase) {
    case WeightPhase::kEmbed:
      return OpKind::kEmbed;
    case WeightPhase::kPreAttention:
      return OpKind::kPreAttention;
    case WeightPhase::kPostAttention:
      return OpKind::kPostAttention;
    case WeightPhase::kLoss:
      return OpKind::kLoss;
  }
  DISTCA_CHECK(false, "a weight of no phase");
}

/// MiB of a bucket: slices should be no shorter than what a wire carries well.
double bucket_mb(const StepOptions& options, int num_workers) {
  constexpr double kLeast = 25, kOfAWorker = 1;
  return options.bucket_mb > 0 ? options.bucket_mb : std::max(kLeast, kOfAWorker * num_workers);
}

/// The replicas of the first and of the last stage.
std::vector<int> ranks_that_tie(const Stage& stage, int replicas) {
  std::vector<int> ranks;
  for (const int holder : {0, stage.count - 1}) {
    for (int replica = 0; replica < replicas; ++replica)
      ranks.push_back(holder * replicas + replica);
  }
  return ranks;
}

GradientExchangeRequest gradient_request(const LlamaConfig& model, const StepOptions& options,
                                         const Stage& stage, int rank, int replicas) {
  const int first_rank = stage.index * replicas;
  DISTCA_CHECK(rank >= first_rank && rank < first_rank + replicas,
               "rank {} does not hold the weights of stage {}", rank, stage.index);
  const std::vector<Weight> weights = weight_table(model, stage);
  const FlatLayout layout = flat_layout(weights);
  const int64_t element = model.dtype == ScalarType::kFloat64 ? 8 : 4;
  GradientExchangeRequest request{
      .elements = layout.elements,
      .block = kFlatBlock,
      .element_bytes = element,
      .bucket_elements = static_cast<int64_t>(bucket_mb(options, replicas) * 0x1p20) / element,
      .rank = rank - first_rank,
      .num_ranks = replicas,
      .first_rank = first_rank,
      .distributed_optimizer = options.distributed_optimizer,
      .overlaps = options.overlap_grad_reduce};
  for (size_t i = 0; i < weights.size(); ++i) {
    PhaseGradients phase{.phase = op_of(weights[i].phase),
                         .layer = std::max(weights[i].layer, -1),
                         .elements = {layout.begins[i], layout.begins[i] + weights[i].numel()}};
    request.phases.push_back(phase);
    if (weights[i].is_tied) {
      request.tied = {layout.begins[i],
                      layout.begins[i] + round_up(weights[i].numel(), kFlatBlock)};
      request.tied_ranks = ranks_that_tie(stage, replicas);
    } else if (model.tie_word_embeddings && weights[i].phase == WeightPhase::kEmbed) {
      phase.phase = OpKind::kLoss;
      request.phases.push_back(phase);
    }
  }
  return request;
}

}  // namespace

Masters masters_of(const StepOptions& options) {
  return options.distributed_optimizer ? Masters::kElsewhere : Masters::kHere;
}

std::shared_ptr<const GradientExchange> gradient_exchange(const LlamaConfig& model,
                                                          const StepOptions& options, int worker,
                                                          int num_workers, int64_t most_buckets) {
  return gradient_exchange(model, options, whole_model(model), worker, num_workers, most_buckets);
}

std::shared_ptr<const GradientExchange> gradient_exchange(const LlamaConfig& model,
                                                          const StepOptions& options,
                                                          const Stage& stage, int rank,
                                                          int replicas, int64_t most_buckets) {
  const WeightOffsets offsets = parameter_offsets(model, stage, masters_of(options));
  GradientExchangeRequest request = gradient_request(model, options, stage, rank, replicas);
  request.most_buckets = most_buckets;
  request.weight_offset = [&](int64_t at) { return offsets.of(at); };
  return std::make_shared<const GradientExchange>(make_gradient_exchange(request));
}

std::vector<Range> gradient_slices(const LlamaConfig& model, const StepOptions& options,
                                   const Stage& stage, int rank, int replicas) {
  return own_slices(gradient_request(model, options, stage, rank, replicas));
}

std::shared_ptr<const AttentionExchange> attention_exchange(const PlanIndex& index, int rank,
                                                            const LlamaConfig& model,
                                                            const StepOptions& options,
                                                            size_t window) {
  return std::make_shared<const AttentionExchange>(
      make_attention_exchange(index.exchange(rank), model.shape(window).attention,
                              exchange_types(model.dtype, options.wide_gradients)));
}

Program step_program(const LlamaConfig& model, const StepOptions& options, bool holds_weights,
                     ProgramRequest::Kind kind, std::vector<NanoPart> nano_batches,
                     std::shared_ptr<const GradientExchange> gradients) {
  return build_program({.overlap = options.overlap,
                        .kind = kind,
                        .holds_weights = holds_weights,
                        .nano_batches = std::move(nano_batches),
                        .model = model.shape(),
                        .gradients = std::move(gradients),
                        .window_of_layer = model.window_of_layer()});
}

Program step_program(const LlamaConfig& model, const StepOptions& options, StagePart part,
                     ProgramRequest::Kind kind, std::shared_ptr<const GradientExchange> gradients) {
  ModelShape shape = model.shape();
  shape.num_layers = part.stage.layers.size();
  return build_program({.overlap = options.overlap,
                        .kind = kind,
                        .holds_weights = !part.stage.layers.empty(),
                        .model = shape,
                        .gradients = std::move(gradients),
                        .stage = std::move(part)});
}

namespace {

/// How a run ends whose device is full.
Error no_memory(int rank, const std::string& where) {
  return {ErrorKind::kIo,
          "rank {} ran out of its device's memory in {}: lower batch.nano_batch_tokens or "
          "plan.max_memory_gib, or set train.recompute = full",
          rank, where};
}

}  // namespace

Step::Step(const LlamaConfig& config, const Llama* model, Communicator& comm,
           const StepOptions& options)
    : config_(config),
      model_(model),
      comm_(comm),
      options_(options),
      kernel_(kernel_request(config, options.kernel, options.threads, comm.cuda_device())),
      buffers_(comm.cuda_device()) {}
Step::~Step() = default;

StepResult Step::run(const StepInput& input, double loss_scale, const UpdateRequest& request) {
  try {
    return play_all(input, loss_scale, request);
  } catch (const OutOfDeviceMemory& operation) {
    throw no_memory(comm_.rank(), operation.what());
  } catch (const c10::OutOfMemoryError& error) {
    throw no_memory(comm_.rank(), fmt::format("the preparation of a step ({})", asked_for(error)));
  }
}

StepResult Step::play_all(const StepInput& input, double loss_scale, const UpdateRequest& request) {
  buffers_.prepare(input.program);
  CoreAttention attention(input.program, kernel_, comm_, buffers_);
  HandOvers hand_overs(input.program, buffers_, comm_, config_);
  WeightUpdate update(input.program, buffers_, comm_, request);
  Player player(attention, hand_overs, update, watch_);
  if (model_ != nullptr) {
    DISTCA_CHECK(input.program.stage == model_->stage(), "a program of another stage");
    model_->refresh_copies();
    for (size_t nano = 0; nano < input.tokens.size(); ++nano) {
      player.add(*model_, input.tokens[nano],
                 {.recompute = options_.recompute,
                  .keys_travel_again = keys_travel_again(input.program, static_cast<int>(nano)),
                  .chunk_rows = options_.chunk_rows,
                  .loss_rows = options_.loss_rows(model_->config()),
                  .loss_scale = loss_scale});
    }
  }
  OpTimes times;
  const std::unique_ptr<OpClock> clock = device_clock(comm_.cuda_device());
  play(input.program, player, &times, recorder_, clock.get());
  ExchangeBytes bytes = attention.bytes();
  bytes += hand_overs.bytes();
  return {.loss_sum = player.losses().sum(),
          .bytes = bytes,
          .times = times,
          .sum = update.sum(),
          .losses = player.losses().by_position()};
}

StepResult Step::train(const StepInput& input, int64_t num_targets, const UpdateRequest& update) {
  const double loss_scale = num_targets > 0 ? 1.0 / static_cast<double>(num_targets) : 0.0;
  return run(input, loss_scale, update);
}

StepResult Step::evaluate(const StepInput& input) {
  const c10::AutoGradMode no_grad(false);
  return run(input, 0.0, {});
}

}  // namespace distca
