#include "distca/train/step.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include "distca/base/error.h"
#include "distca/train/config.h"

namespace distca {
namespace {

/// A tensor that starts a phase's graph.
at::Tensor leaf(const at::Tensor& tensor) {
  return tensor.detach().requires_grad_(at::GradMode::is_enabled());
}

/// The graphs of one nano-batch between forward and backward.
struct NanoState {
  struct Layer {
    at::Tensor x;  // input of pre and, as the residual, of post: a leaf whose gradient both add to
    at::Tensor q, k, v;  // outputs of pre
    at::Tensor o;        // leaf of post
    at::Tensor y;        // output of post
  };
  std::unique_ptr<CoreAttention> attention;
  std::shared_ptr<const Llama::Rope> rope;
  at::Tensor ids, targets;
  at::Tensor embedded;
  at::Tensor x;  // running activation, detached
  std::vector<Layer> layers;
  at::Tensor loss_leaf, loss;
  at::Tensor gradient;  // running gradient of the activation

  void finish_layer(int layer) { layers[layer] = {}; }
};

class Player final : public OpPlayer {
 public:
  Player(const Llama& model, Communicator& comm, AttentionKernel& kernel, double loss_scale)
      : model_(model), comm_(comm), kernel_(kernel), loss_scale_(loss_scale) {}

  void add(NanoInput input, CoreAttentionOptions options) {
    const at::Device device = model_.parameters()[0].device();
    auto tensor = [&](std::vector<int64_t>& values) {
      return at::from_blob(values.data(), {static_cast<int64_t>(values.size())}, at::kLong)
          .clone()
          .to(device);
    };
    NanoState& nano = nanos_.emplace_back();
    nano.ids = tensor(input.tokens.ids);
    nano.targets = tensor(input.tokens.targets);
    nano.rope = model_.rope(tensor(input.tokens.positions));
    nano.layers.resize(options.num_layers);
    nano.attention =
        std::make_unique<CoreAttention>(std::move(input.exchange), options, kernel_, comm_);
  }

  void play(const Op& op) override {
    op.pass == Pass::kForward ? play_forward(op) : play_backward(op);
  }

  StepResult result() const {
    StepResult result{.loss_sum = loss_sum_, .bytes = {}, .times = {}};
    for (const NanoState& nano : nanos_) {
      result.bytes.sent += nano.attention->bytes().sent;
      result.bytes.received += nano.attention->bytes().received;
      result.bytes.copied += nano.attention->bytes().copied;
    }
    return result;
  }

  std::function<void()> sum_gradients;
  std::function<void()> update;

 private:
  void play_forward(const Op& op) {
    NanoState& nano = nanos_[op.nano_batch];
    NanoState::Layer* layer = op.layer < 0 ? nullptr : &nano.layers[op.layer];
    switch (op.kind) {
      case OpKind::kEmbed:
        nano.embedded = model_.embed(nano.ids);
        nano.x = nano.embedded.detach();
        break;
      case OpKind::kPre:
        layer->x = leaf(nano.x);
        model_.pre_attention(op.layer, layer->x, *nano.rope, &layer->q, &layer->k, &layer->v);
        break;
      case OpKind::kEnter:
        nano.attention->enter(op.layer, layer->q.detach(), layer->k.detach(), layer->v.detach(),
                              describe(op));
        break;
      case OpKind::kAttend:
        nano.attention->attend(op.layer);
        break;
      case OpKind::kLeave:
        layer->o = leaf(nano.attention->leave(op.layer, describe(op)));
        break;
      case OpKind::kPost:
        layer->y = model_.post_attention(op.layer, layer->x, layer->o);
        nano.x = layer->y.detach();
        if (!at::GradMode::is_enabled()) {
          nano.attention->drop(op.layer);
          nano.finish_layer(op.layer);
        }
        break;
      case OpKind::kLoss:
        nano.loss_leaf = leaf(nano.x);
        nano.loss = model_.loss_sum(nano.loss_leaf, nano.targets);
        loss_sum_ += nano.loss.item<double>();
        break;
      default:
        DISTCA_CHECK(false, "no forward operation: {}", describe(op));
    }
  }

  void play_backward(const Op& op) {
    if (op.kind == OpKind::kGradientSum) return sum_gradients();
    if (op.kind == OpKind::kOptimizer) return update();
    NanoState& nano = nanos_[op.nano_batch];
    NanoState::Layer* layer = op.layer < 0 ? nullptr : &nano.layers[op.layer];
    switch (op.kind) {
      case OpKind::kLoss:
        torch::autograd::backward({nano.loss}, {at::full_like(nano.loss, loss_scale_)});
        nano.gradient = nano.loss_leaf.grad();
        nano.loss.reset();
        break;
      case OpKind::kPost:
        torch::autograd::backward({layer->y}, {nano.gradient});
        layer->y.reset();
        break;
      case OpKind::kEnter:
        nano.attention->enter_backward(op.layer, layer->o.grad(), describe(op));
        break;
      case OpKind::kAttend:
        nano.attention->attend_backward(op.layer);
        break;
      case OpKind::kLeave:
        nano.attention->leave_backward(op.layer, &dq_, &dk_, &dv_, describe(op));
        break;
      case OpKind::kPre:
        torch::autograd::backward({layer->q, layer->k, layer->v}, {dq_, dk_, dv_});
        nano.gradient = layer->x.grad();
        nano.finish_layer(op.layer);
        break;
      case OpKind::kEmbed:
        torch::autograd::backward({nano.embedded}, {nano.gradient});
        nano.embedded.reset();
        break;
      default:
        DISTCA_CHECK(false, "no backward operation: {}", describe(op));
    }
  }

  const Llama& model_;
  Communicator& comm_;
  AttentionKernel& kernel_;
  double loss_scale_;
  double loss_sum_ = 0;
  std::vector<NanoState> nanos_;
  at::Tensor dq_, dk_, dv_;  // between leave and pre
};

CoreAttentionOptions attention_options(const LlamaConfig& config,
                                       CoreAttentionOptions::GradientTravel travel,
                                       int nano_batch) {
  return {.window_left = config.sliding_window > 0 ? config.sliding_window - 1 : -1,
          .num_layers = static_cast<int>(config.num_hidden_layers),
          .nano_batch = nano_batch,
          .gradient_travel = travel};
}

}  // namespace

Step::Step(const Llama& model, Communicator& comm, const StepOptions& options)
    : model_(model),
      comm_(comm),
      gradient_travel_(options.gradient_travel),
      kernel_(kernel_request(model.config(), options.kernel, options.threads, comm.cuda_device())) {
}
Step::~Step() = default;

namespace {

StepResult run(Player& player, const Program& program) {
  OpTimes times;
  play(program, player, &times);
  StepResult result = player.result();
  result.times = times;
  return result;
}

}  // namespace

StepResult Step::train(std::vector<NanoInput> inputs, int64_t num_targets,
                       const std::function<void()>& sum_gradients,
                       const std::function<void()>& update) {
  Player player(model_, comm_, kernel_,
                num_targets > 0 ? 1.0 / static_cast<double>(num_targets) : 0.0);
  player.sum_gradients = sum_gradients;
  player.update = update;
  const int num_nano_batches = static_cast<int>(inputs.size());
  for (int i = 0; i < num_nano_batches; ++i) {
    player.add(std::move(inputs[i]), attention_options(model_.config(), gradient_travel_, i));
  }
  return run(player, build_blocking_program(
                         {.num_layers = static_cast<int>(model_.config().num_hidden_layers),
                          .num_nano_batches = num_nano_batches}));
}

StepResult Step::evaluate(std::vector<NanoInput> inputs) {
  const c10::AutoGradMode no_grad(false);
  Player player(model_, comm_, kernel_, 0.0);
  const int num_nano_batches = static_cast<int>(inputs.size());
  for (int i = 0; i < num_nano_batches; ++i) {
    player.add(std::move(inputs[i]), attention_options(model_.config(), gradient_travel_, i));
  }
  return run(player, build_blocking_program(
                         {.num_layers = static_cast<int>(model_.config().num_hidden_layers),
                          .num_nano_batches = num_nano_batches,
                          .kind = ProgramShape::Kind::kEvaluate}));
}

}  // namespace distca
