#include "distca/train/step.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

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
    at::Tensor x;  // input of pre and, as the residual, of post: a leaf whose gradient both add to
    at::Tensor q, k, v;  // outputs of pre
    at::Tensor o;        // leaf of post
    at::Tensor y;        // output of post
  };
  std::unique_ptr<CoreAttention> attention;
  // The rest only where there are weights.
  at::Tensor ids, targets, positions;       // of tokens
  std::shared_ptr<const Llama::Rope> rope;  // from embed to loss
  at::Tensor embedded;
  at::Tensor x;  // running activation, detached
  std::vector<Layer> layers;
  at::Tensor loss_leaf, loss;
  at::Tensor gradient;  // running gradient of the activation

  /// Frees all but the counts of `attention`: gradients are summed and weights updated without it.
  void end() {
    NanoState ended;
    ended.attention = std::move(attention);
    *this = std::move(ended);
  }
};

class Player final : public OpPlayer {
 public:
  /// `model`: null on a dedicated server.
  Player(const Llama* model, double loss_scale, const std::function<void()>& sum_gradients,
         const std::function<void()>& update)
      : model_(model), loss_scale_(loss_scale), sum_gradients_(sum_gradients), update_(update) {}

  void add(const LocalTokens& tokens, std::unique_ptr<CoreAttention> attention) {
    NanoState& nano = nanos_.emplace_back();
    nano.attention = std::move(attention);
    if (model_ == nullptr) return;
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
    if (op.kind == OpKind::kAttend) return attention(op).attend(op);
    op.pass == Pass::kForward ? play_forward(op) : play_backward(op);
  }
  void pack(const Op& op) override { attention(op).pack(op); }
  void post(const Op& op) override {
    attention(op).post(op);
    const Pass last = at::GradMode::is_enabled() ? Pass::kBackward : Pass::kForward;
    // Where there are weights, the phase that follows ends the layer.
    if (model_ == nullptr && op.kind == OpKind::kLeave && op.pass == last)
      attention(op).drop(op.layer);
  }
  void wait(const Op& op) override { attention(op).wait(op); }
  void land(const Op& op) override { attention(op).land(op); }
  void wait_sent(const Op& op) override { attention(op).wait_sent(op); }

  StepResult result(const OpTimes& times) const {
    StepResult result{.loss_sum = loss_sum_, .bytes = {}, .times = times};
    for (const NanoState& nano : nanos_) result.bytes += nano.attention->bytes();
    return result;
  }

 private:
  CoreAttention& attention(const Op& op) { return *nanos_[op.nano_batch].attention; }

  void play_forward(const Op& op) {
    NanoState& nano = nanos_[op.nano_batch];
    NanoState::Layer* layer = op.layer < 0 ? nullptr : &nano.layers[op.layer];
    switch (op.kind) {
      case OpKind::kEmbed:
        nano.embedded = model_->embed(nano.ids);
        nano.x = nano.embedded.detach();
        nano.rope = model_->rope(nano.positions);
        break;
      case OpKind::kPre:
        layer->x = leaf(nano.x);
        model_->pre_attention(op.layer, layer->x, *nano.rope, &layer->q, &layer->k, &layer->v);
        nano.attention->set_qkv(op.layer, layer->q.detach(), layer->k.detach(), layer->v.detach());
        break;
      case OpKind::kPost:
        layer->o = leaf(nano.attention->o(op.layer));
        layer->y = model_->post_attention(op.layer, layer->x, layer->o);
        nano.x = layer->y.detach();
        if (!at::GradMode::is_enabled()) {
          nano.attention->drop(op.layer);
          *layer = {};
        }
        break;
      case OpKind::kLoss:
        nano.loss_leaf = leaf(nano.x);
        nano.x.reset();
        nano.rope.reset();
        nano.loss = model_->loss_sum(nano.loss_leaf, nano.targets);
        loss_sum_ += nano.loss.item<double>();
        if (!at::GradMode::is_enabled()) nano.end();
        break;
      default:
        DISTCA_CHECK(false, "no forward operation: {}", describe(op));
    }
  }

  void play_backward(const Op& op) {
    if (op.kind == OpKind::kGradientSum) return sum_gradients_();
    if (op.kind == OpKind::kOptimizer) return update_();
    NanoState& nano = nanos_[op.nano_batch];
    NanoState::Layer* layer = op.layer < 0 ? nullptr : &nano.layers[op.layer];
    switch (op.kind) {
      case OpKind::kLoss:
        torch::autograd::backward({nano.loss}, {at::full_like(nano.loss, loss_scale_)});
        nano.gradient = nano.loss_leaf.grad();
        nano.loss.reset();
        nano.loss_leaf.reset();
        break;
      case OpKind::kPost:
        torch::autograd::backward({layer->y}, {nano.gradient});
        nano.attention->set_d_o(op.layer, layer->o.grad());
        layer->y.reset();
        layer->o.reset();
        break;
      case OpKind::kPre: {
        at::Tensor dq, dk, dv;
        nano.attention->take_gradients(op.layer, &dq, &dk, &dv);
        torch::autograd::backward({layer->q, layer->k, layer->v}, {dq, dk, dv});
        nano.gradient = layer->x.grad();
        *layer = {};
        break;
      }
      case OpKind::kEmbed:
        torch::autograd::backward({nano.embedded}, {nano.gradient});
        nano.end();
        break;
      default:
        DISTCA_CHECK(false, "no backward operation: {}", describe(op));
    }
  }

  const Llama* model_;
  double loss_scale_;
  const std::function<void()>& sum_gradients_;
  const std::function<void()>& update_;
  double loss_sum_ = 0;
  std::vector<NanoState> nanos_;
};

ExchangeTypes exchange_types(ScalarType compute, bool wide_gradients) {
  const ScalarType accumulator = kernels::accumulator_type(compute);
  return {.compute = compute,
          .accumulator = accumulator,
          .gradient = wide_gradients ? accumulator : compute};
}

}  // namespace

StepOptions step_options(const Config& config) {
  return {.schedule = schedule_of(config.train.schedule),
          .wide_gradients = config.exchange.grad_dtype == "accumulator",
          .kernel = kernel_choice(config.attention.kernel),
          .threads = static_cast<int>(config.train.threads_per_rank)};
}

Program step_program(const LlamaConfig& model, const StepOptions& options, bool holds_weights,
                     ProgramRequest::Kind kind, const std::vector<NanoInput>& inputs) {
  ProgramRequest request{.schedule = options.schedule,
                         .kind = kind,
                         .holds_weights = holds_weights,
                         .nano_batches = {},
                         .model = llama_layers(model),
                         .vocab_size = model.vocab_size,
                         .types = exchange_types(model.dtype, options.wide_gradients)};
  for (const NanoInput& input : inputs)
    request.nano_batches.push_back({&input.exchange, input.pairs, input.resent});
  return build_program(request);
}

Step::Step(const LlamaConfig& config, const Llama* model, Communicator& comm,
           const StepOptions& options)
    : config_(config),
      model_(model),
      comm_(comm),
      options_(options),
      kernel_(kernel_request(config, options.kernel, options.threads, comm.cuda_device())),
      buffers_(comm.cuda_device()) {}
Step::~Step() = default;

StepResult Step::run(ProgramRequest::Kind kind, std::vector<NanoInput> inputs, double loss_scale,
                     const std::function<void()>& sum_gradients,
                     const std::function<void()>& update) {
  const Program program = step_program(config_, options_, model_ != nullptr, kind, inputs);
  buffers_.prepare(program);
  const CoreAttentionOptions options{
      .window_left = llama_layers(config_).attention.window_left,
      .num_layers = static_cast<int>(config_.num_hidden_layers),
      .types = exchange_types(config_.dtype, options_.wide_gradients)};
  Player player(model_, loss_scale, sum_gradients, update);
  for (NanoInput& input : inputs) {
    player.add(input.tokens, std::make_unique<CoreAttention>(std::move(input.exchange), options,
                                                             kernel_, comm_, buffers_));
  }
  OpTimes times;
  const std::unique_ptr<OpClock> clock = device_clock(comm_.cuda_device());
  play(program, player, &times, recorder_, clock.get());
  return player.result(times);
}

StepResult Step::train(std::vector<NanoInput> inputs, int64_t num_targets,
                       const std::function<void()>& sum_gradients,
                       const std::function<void()>& update) {
  const double loss_scale = num_targets > 0 ? 1.0 / static_cast<double>(num_targets) : 0.0;
  return run(ProgramRequest::Kind::kTrain, std::move(inputs), loss_scale, sum_gradients, update);
}

StepResult Step::evaluate(std::vector<NanoInput> inputs) {
  const c10::AutoGradMode no_grad(false);
  return run(ProgramRequest::Kind::kEvaluate, std::move(inputs), 0.0, nullptr, nullptr);
}

}  // namespace distca
