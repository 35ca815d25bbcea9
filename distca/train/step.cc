#include "distca/train/step.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "distca/base/error.h"
#include "distca/kernels/rows.h"
#include "distca/runtime/device_clock.h"
#include "distca/train/config.h"
#include "distca/train/nano_phases.h"

namespace distca {
namespace {

class Player final : public OpPlayer {
 public:
  Player(CoreAttention& attention, const Step::SumGradients& sum_gradients,
         const std::function<void()>& update)
      : attention_(attention), sum_gradients_(sum_gradients), update_(update) {}

  /// The next nano-batch. A dedicated server has none.
  void add(const Llama& model, const LocalTokens& tokens, const NanoPhases::Options& options) {
    nanos_.push_back(std::make_unique<NanoPhases>(
        model, attention_, static_cast<int>(nanos_.size()), tokens, options));
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
    NanoPhases& nano = *nanos_[op.nano_batch];
    switch (op.kind) {
      case OpKind::kEmbed:
        return nano.embed();
      case OpKind::kPreAttention:
        return nano.pre_attention(op.layer);
      case OpKind::kPostAttention:
        return nano.post_attention(op.layer);
      case OpKind::kLoss:
        loss_sum_ += nano.loss();
        if (!at::GradMode::is_enabled()) nanos_[op.nano_batch].reset();
        return;
      default:
        DISTCA_CHECK(false, "no forward operation: {}", describe(op));
    }
  }

  void play_backward(const Op& op) {
    if (op.kind == OpKind::kGradReduce) return sum_gradients_(loss_sum_);
    if (op.kind == OpKind::kOptimizer) return update_();
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
  const Step::SumGradients& sum_gradients_;
  const std::function<void()>& update_;
  double loss_sum_ = 0;
  std::vector<std::unique_ptr<NanoPhases>> nanos_;  // several are alive at a time
};

/// Whether servers get Q, K, V again for backward of a nano-batch.
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
  return {.overlap = config.train.overlap,
          .wide_gradients = config.exchange.wide_gradients,
          .kernel = config.attention.kernel,
          .threads = static_cast<int>(config.train.threads_per_rank),
          .recompute = config.train.recompute,
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
      options_(options),
      kernel_(kernel_request(config, options.kernel, options.threads, comm.cuda_device())),
      buffers_(comm.cuda_device()) {}
Step::~Step() = default;

StepResult Step::run(const StepInput& input, double loss_scale, const SumGradients& sum_gradients,
                     const std::function<void()>& update) {
  buffers_.prepare(input.program);
  CoreAttention attention(input.program, kernel_, comm_, buffers_);
  Player player(attention, sum_gradients, update);
  if (model_ != nullptr) {
    model_->refresh_copies();
    for (size_t nano = 0; nano < input.tokens.size(); ++nano) {
      player.add(*model_, input.tokens[nano],
                 {.recompute = options_.recompute,
                  .keys_travel_again = keys_travel_again(input.program, static_cast<int>(nano)),
                  .loss_rows = options_.loss_rows(model_->config()),
                  .loss_scale = loss_scale});
    }
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
