#include "distca/train/step.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "distca/base/error.h"
#include "distca/kernels/rows.h"
#include "distca/runtime/device_clock.h"
#include "distca/train/config.h"
#include "distca/train/plan_request.h"

namespace distca {
namespace {

/// A tensor that starts a phase's graph.
at::Tensor leaf(const at::Tensor& tensor) {
  return tensor.detach().requires_grad_(at::GradMode::is_enabled());
}

/// What a nano-batch has between its operations. Several are alive at a time: nothing of one
/// belongs to the player.
struct NanoState {
  struct Layer {
    at::Tensor x;  // input of pre_attention and, as the residual, of post_attention: a leaf whose
                   // gradient both add to
    at::Tensor q, k, v;  // outputs of pre_attention
    at::Tensor o;        // leaf of post_attention
    at::Tensor y;        // output of post_attention
  };
  at::Tensor ids, targets, positions;       // of tokens
  std::shared_ptr<const Llama::Rope> rope;  // from embed to loss
  at::Tensor x;                             // running activation, detached
  std::vector<Layer> layers;
  at::Tensor gradient;  // running gradient of the activation
};

class Player final : public OpPlayer {
 public:
  /// `model`: null on a dedicated server.
  Player(const Llama* model, CoreAttention& attention, double loss_scale, int64_t loss_rows,
         const Step::SumGradients& sum_gradients, const std::function<void()>& update)
      : model_(model),
        attention_(attention),
        loss_scale_(loss_scale),
        loss_rows_(loss_rows),
        sum_gradients_(sum_gradients),
        update_(update) {}

  /// The next nano-batch.
  void add(const LocalTokens& tokens) {
    NanoState& nano = nanos_.emplace_back();
    const at::Device device = model_->parameters()[0].device();
    const auto tensor = [&](const std::vector<int64_t>& values) {
      return at::tensor(values, at::kLong).to(device);
    };
    nano.ids = tensor(tokens.ids);
    nano.targets = tensor(tokens.targets);
    nano.positions = tensor(tokens.positions);
    nano.layers.resize(model_->config().num_hidden_layers);
  }

  void play(const Op& op) override {
    if (op.kind == OpKind::kCoreAttention) return attention_.compute(op);
    op.pass == Pass::kForward ? play_forward(op) : play_backward(op);
  }
  void pack(const Op& op) override { attention_.pack(op); }
  void issue(const Op& op) override { attention_.issue(op); }
  void wait(const Op& op) override { attention_.wait(op); }
  void land(const Op& op) override { attention_.land(op); }
  void wait_sent(const Op& op) override { attention_.wait_sent(op); }

  double loss_sum() const { return loss_sum_; }

 private:
  void play_forward(const Op& op) {
    NanoState& nano = nanos_[op.nano_batch];
    NanoState::Layer* layer = op.layer < 0 ? nullptr : &nano.layers[op.layer];
    switch (op.kind) {
      case OpKind::kEmbed:
        nano.x = model_->embed(nano.ids);
        nano.rope = model_->rope(nano.positions);
        break;
      case OpKind::kPreAttention:
        layer->x = leaf(nano.x);
        model_->pre_attention(op.layer, layer->x, *nano.rope, &layer->q, &layer->k, &layer->v);
        attention_.set_qkv(op.nano_batch, op.layer, layer->q.detach(), layer->k.detach(),
                           layer->v.detach());
        break;
      case OpKind::kPostAttention:
        layer->o = leaf(attention_.o(op.nano_batch, op.layer));
        layer->y = model_->post_attention(op.layer, layer->x, layer->o);
        nano.x = layer->y.detach();
        if (!at::GradMode::is_enabled()) {
          attention_.drop(op.nano_batch, op.layer);
          *layer = {};
        }
        break;
      case OpKind::kLoss:
        // Backward belongs to it: so the logits of a chunk never wait for it.
        loss_sum_ += model_->loss_sum(nano.x, nano.targets, loss_rows_, loss_scale_,
                                      at::GradMode::is_enabled() ? &nano.gradient : nullptr);
        nano.x.reset();
        nano.rope.reset();
        if (!at::GradMode::is_enabled()) nano = {};
        break;
      default:
        DISTCA_CHECK(false, "no forward operation: {}", describe(op));
    }
  }

  void play_backward(const Op& op) {
    if (op.kind == OpKind::kGradReduce) return sum_gradients_(loss_sum_);
    if (op.kind == OpKind::kOptimizer) return update_();
    NanoState& nano = nanos_[op.nano_batch];
    NanoState::Layer* layer = op.layer < 0 ? nullptr : &nano.layers[op.layer];
    switch (op.kind) {
      case OpKind::kLoss:
        break;  // done in forward
      case OpKind::kPostAttention:
        torch::autograd::backward({layer->y}, {nano.gradient});
        model_->collect_gradients(op.layer);
        attention_.set_d_o(op.nano_batch, op.layer, layer->o.grad());
        layer->y.reset();
        layer->o.reset();
        break;
      case OpKind::kPreAttention: {
        at::Tensor dq, dk, dv;
        attention_.take_gradients(op.nano_batch, op.layer, &dq, &dk, &dv);
        torch::autograd::backward({layer->q, layer->k, layer->v}, {dq, dk, dv});
        model_->collect_gradients(op.layer);
        nano.gradient = layer->x.grad();
        *layer = {};
        break;
      }
      case OpKind::kEmbed:
        model_->embed_backward(nano.ids, nano.gradient);
        nano = {};
        break;
      default:
        DISTCA_CHECK(false, "no backward operation: {}", describe(op));
    }
  }

  const Llama* model_;
  CoreAttention& attention_;
  double loss_scale_;
  int64_t loss_rows_;
  const Step::SumGradients& sum_gradients_;
  const std::function<void()>& update_;
  double loss_sum_ = 0;
  std::vector<NanoState> nanos_;
};

}  // namespace

int64_t StepOptions::loss_rows(const LlamaConfig& model) const {
  if (loss_chunk_tokens > 0) return loss_chunk_tokens;
  return std::max<int64_t>(512, (int64_t{1} << 25) / model.vocab_size);
}

StepOptions step_options(const Config& config) {
  return {.overlap = config.train.overlap,
          .wide_gradients = config.exchange.wide_gradients,
          .kernel = config.attention.kernel,
          .threads = static_cast<int>(config.train.threads_per_rank),
          .loss_chunk_tokens = config.train.loss_chunk_tokens};
}

std::shared_ptr<const AttentionExchange> attention_exchange(const PlanIndex& index, int rank,
                                                            const LlamaConfig& model,
                                                            const StepOptions& options) {
  return std::make_shared<const AttentionExchange>(
      make_attention_exchange(index.exchange(rank), model.shape().attention,
                              exchange_types(model.dtype, options.wide_gradients)));
}

Program step_program(const LlamaConfig& model, const StepOptions& options, bool holds_weights,
                     ProgramRequest::Kind kind, std::vector<NanoPart> nano_batches) {
  return build_program({.overlap = options.overlap,
                        .kind = kind,
                        .holds_weights = holds_weights,
                        .nano_batches = std::move(nano_batches),
                        .model = model.shape()});
}

Program rank_program(const Config& config, const std::vector<PlanIndex>& plans, bool redispatched,
                     ProgramRequest::Kind kind, int rank, int num_workers) {
  const StepOptions options = step_options(config);
  std::vector<NanoPart> parts;
  for (const PlanIndex& plan : plans) {
    parts.push_back({attention_exchange(plan, rank, config.model, options), redispatched});
  }
  return step_program(config.model, options, rank < num_workers, kind, std::move(parts));
}

Step::Step(const LlamaConfig& config, const Llama* model, Communicator& comm,
           const StepOptions& options)
    : model_(model),
      comm_(comm),
      loss_rows_(options.loss_rows(config)),
      kernel_(kernel_request(config, options.kernel, options.threads, comm.cuda_device())),
      buffers_(comm.cuda_device()) {}
Step::~Step() = default;

StepResult Step::run(const StepInput& input, double loss_scale, const SumGradients& sum_gradients,
                     const std::function<void()>& update) {
  buffers_.prepare(input.program);
  CoreAttention attention(input.program, kernel_, comm_, buffers_);
  Player player(model_, attention, loss_scale, loss_rows_, sum_gradients, update);
  if (model_ != nullptr) {
    model_->refresh_copies();
    for (const LocalTokens& tokens : input.tokens) player.add(tokens);
  }
  OpTimes times;
  const std::unique_ptr<OpClock> clock = device_clock(comm_.cuda_device());
  play(input.program, player, &times, recorder_, clock.get());
  return {.loss_sum = player.loss_sum(), .bytes = attention.bytes(), .times = times};
}

StepResult Step::train(const StepInput& input, int64_t num_targets,
                       const SumGradients& sum_gradients, const std::function<void()>& update) {
  const double loss_scale = num_targets > 0 ? 1.0 / static_cast<double>(num_targets) : 0.0;
  return run(input, loss_scale, sum_gradients, update);
}

StepResult Step::evaluate(const StepInput& input) {
  const c10::AutoGradMode no_grad(false);
  return run(input, 0.0, nullptr, nullptr);
}

}  // namespace distca
