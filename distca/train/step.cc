#include "distca/train/step.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "distca/base/error.h"
#include "distca/config/config.h"
#include "distca/runtime/cuda/device_clock.h"
#include "distca/runtime/out_of_device_memory.h"
#include "distca/train/nano_phases.h"
#include "distca/train/stage_p2p.h"
#include "distca/train/step_losses.h"
#include "distca/train/tensor_messages.h"
#include "distca/train/tensor_nano_phases.h"

namespace distca {
namespace {

KernelRequest kernel_request(const LlamaConfig& config, const StepOptions& options,
                             int cuda_device) {
  KernelRequest request = options.kernel;
  request.shape = config.attention_shape();
  request.type = config.dtype;
  request.cuda_device = cuda_device;
  return request;
}

class Player final : public OpPlayer {
 public:
  Player(StepAttention& attention, StageP2p& p2p, TensorMessages& tensor, WeightUpdate& update,
         const OpWatch& watch)
      : attention_(attention), p2p_(p2p), tensor_(tensor), update_(update), watch_(watch) {}

  /// The next nano-batch. A dedicated server has none.
  void add(const Llama& model, const LocalTokens& tokens, const NanoOptions& options) {
    const int index = static_cast<int>(nanos_.size());
    if (model.stage().tensor.size > 1) {
      nanos_.push_back(
          std::make_unique<TensorNanoPhases>(model, attention_, tensor_, index, tokens, options));
    } else {
      nanos_.push_back(std::make_unique<NanoPhases>(model, attention_, index, tokens, options));
    }
    losses_.add(tokens);
  }

  void play(const Op& op) override {
    notify(op, false);
    compute(op);
    notify(op, true);
  }
  // Gradients and weights travel from where they are, and land where they are wanted.
  void pack(const Op& op) override {
    notify(op, false);
    if (is_of_weights(op.kind)) return;
    if (is_of_tensor(op.kind)) return nanos_[op.nano_batch]->pack(op);
    op.kind == OpKind::kP2p ? pack_p2p(op) : attention_.pack(op);
  }
  void land(const Op& op) override {
    if (is_of_weights(op.kind)) return;
    if (is_of_tensor(op.kind)) return nanos_[op.nano_batch]->land(op);
    op.kind == OpKind::kP2p ? land_p2p(op) : attention_.land(op);
  }
  void issue(const Op& op) override {
    with_its_part(op, [&](auto& part) { part.issue(op); });
    notify(op, true);
  }
  void wait(const Op& op) override {
    with_its_part(op, [&](auto& part) { part.wait(op); });
  }
  void wait_sent(const Op& op) override {
    with_its_part(op, [&](auto& part) { part.wait_sent(op); });
  }

  StepLosses& losses() { return losses_; }

 private:
  void notify(const Op& op, bool is_over) {
    if (watch_) watch_(op, is_over);
  }

  void compute(const Op& op) {
    if (op.kind == OpKind::kCoreAttention) return attention_.compute(op);
    if (is_of_weights(op.kind))
      return update_.play(op, op.kind == OpKind::kGradNorm ? losses_.sum() : 0);
    std::unique_ptr<NanoPlayer>& nano = nanos_[op.nano_batch];
    if (op.kind == OpKind::kLoss && op.pass == Pass::kForward) {
      const bool trains = at::GradMode::is_enabled();
      at::Tensor of_tokens;
      const at::Tensor sums = nano->loss(trains ? nullptr : &of_tokens);
      if (sums.defined()) losses_.put(op.nano_batch, sums, of_tokens);
      if (!trains) nano.reset();
    } else {
      nano->play(op);
      if (nano->is_done()) nano.reset();
    }
  }

  /// Calls `work` with what plays a communication.
  template <typename Work>
  void with_its_part(const Op& op, const Work& work) {
    if (is_of_weights(op.kind)) return work(update_);
    if (is_of_tensor(op.kind)) return work(tensor_);
    op.kind == OpKind::kP2p ? work(p2p_) : work(attention_);
  }

  void pack_p2p(const Op& op) {
    if (op.is_receive) return;
    std::unique_ptr<NanoPlayer>& nano = nanos_[op.nano_batch];
    const bool forward = op.pass == Pass::kForward;
    p2p_.pack(op, forward ? nano->take_output() : nano->take_gradient());
    if (nano->is_done() || !at::GradMode::is_enabled()) nano.reset();
  }

  void land_p2p(const Op& op) {
    if (!op.is_receive) return;
    NanoPlayer& nano = *nanos_[op.nano_batch];
    const at::Tensor rows = p2p_.land(op);
    op.pass == Pass::kForward ? nano.begin(rows) : nano.begin_backward(rows);
  }

  StepAttention& attention_;
  StageP2p& p2p_;
  TensorMessages& tensor_;
  WeightUpdate& update_;
  const OpWatch& watch_;
  StepLosses losses_;
  std::vector<std::unique_ptr<NanoPlayer>> nanos_;  // several are alive at a time
};

/// Returns true if servers get Q, K, V again for backward of a nano-batch.
bool keys_travel_again(const Program& program, int nano_batch) {
  return std::ranges::any_of(program.ops, [&](const Op& op) {
    return op.kind == OpKind::kRedispatch && op.nano_batch == nano_batch;
  });
}

/// The loss waits within its operation, which is no work of this rank.
void count_as_wait(double loss_waited_s, OpTimes& times) {
  OpTimes::Parts& loss =
      times.seconds[static_cast<int>(OpKind::kLoss)][static_cast<int>(Pass::kForward)];
  loss[static_cast<int>(OpPart::kPlay)] -= loss_waited_s;
  loss[static_cast<int>(OpPart::kWait)] += loss_waited_s;
}

}  // namespace

Step::Step(const LlamaConfig& config, const Llama* model, Communicator& comm,
           const StepOptions& options)
    : config_(config),
      model_(model),
      comm_(comm),
      options_(options),
      kernel_(kernel_request(config.divided(options.tensor), options, comm.cuda_device())),
      buffers_(comm.cuda_device()) {}

StepResult Step::run(const StepInput& input, double loss_scale, const UpdateRequest& request) {
  try {
    return play_all(input, loss_scale, request);
  } catch (const OutOfDeviceMemory& operation) {
    throw device_is_full(comm_.rank(), operation.what());
  } catch (const c10::OutOfMemoryError& error) {
    throw device_is_full(comm_.rank(),
                         fmt::format("the preparation of a step ({})", asked_for(error)));
  }
}

StepResult Step::play_all(const StepInput& input, double loss_scale, const UpdateRequest& request) {
  buffers_.prepare(input.program);
  StepAttention attention(input.program, kernel_, comm_, buffers_);
  StageP2p p2p(input.program, buffers_, comm_, config_);
  TensorMessages tensor(input.program, buffers_, comm_, config_, recorder_);
  WeightUpdate update(input.program, buffers_, comm_, config_, request);
  Player player(attention, p2p, tensor, update, watch_);
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
  count_as_wait(tensor.loss_waited_s(), times);
  ExchangeBytes bytes = attention.bytes();
  bytes += p2p.bytes();
  bytes += tensor.bytes();
  return {.loss_sum = player.losses().sum(),
          .bytes = bytes,
          .bytes_tensor = tensor.bytes().sent,
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
