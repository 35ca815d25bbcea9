#include "bench/stage_player.h"

#include <utility>

#include "bench/step_arms.h"
#include "distca/base/clock.h"
#include "distca/comm/collectives.h"
#include "distca/train/stage_p2p.h"

namespace distca::bench {
namespace {

constexpr uint64_t kSeed = 1;

Stage stage_of(const LlamaConfig& config, const Communicator& comm) {
  const int64_t layers = config.num_hidden_layers / comm.size();
  return {.index = comm.rank(),
          .count = comm.size(),
          .layers = {comm.rank() * layers, (comm.rank() + 1) * layers}};
}

/// The playing thread's time in operations, elapsed and in processor time.
struct Played {
  double computed_s = 0, computed_processor_s = 0;
};
Played played_of(const OpTimes& times) {
  Played result;
  for (int kind = 0; kind < kNumOpKinds; ++kind) {
    if (is_of_weights(static_cast<OpKind>(kind))) continue;
    for (const int pass : {0, 1}) {
      const OpTimes::Parts& elapsed = times.seconds[kind][pass];
      result.computed_s += elapsed[static_cast<size_t>(OpPart::kPlay)];
      result.computed_processor_s +=
          times.processor_seconds[kind][pass][static_cast<size_t>(OpPart::kPlay)];
    }
  }
  return result;
}

}  // namespace

StageModel::StageModel(const LlamaConfig& config, Communicator& comm)
    : config_(config),
      comm_(comm),
      replicas_(comm.split(std::vector{comm.rank()})),
      llama_(config, stage_of(config, comm), kSeed, comm.cuda_device()),
      gradients_(gradient_exchange(config, {}, stage_of(config, comm), comm.rank(),
                                   /*replicas=*/1)),
      optimizer_(llama_, kSeed, {}, gradients_) {}

StageStep StageModel::play(Step& step, const StepInput& input, int64_t num_targets) {
  optimizer_.zero_gradients();
  barrier(comm_, "begin of a step");
  StageStep result;
  result.played.begin_s = steady_seconds();
  const double processor_begin = process_processor_seconds();
  const StepResult made =
      step.train(input, num_targets,
                 {.optimizer = &optimizer_,
                  .workers = replicas_.get(),
                  .all_stages = &comm_,
                  .accepts = [](const GradientSum&) { return false; },
                  .before_norm = [&] { result.played.computed_s = steady_seconds(); }});
  result.played.end_s = steady_seconds();
  result.played.processor_s = process_processor_seconds() - processor_begin;
  result.played.waited_s = made.times.of(OpPart::kWait);
  result.played.loss_sum = made.sum.loss_sum;
  result.played.gradient_norm = made.sum.norm;
  const Played parts = played_of(made.times);
  result.computed_s = parts.computed_s;
  result.attention_s = made.times.of(OpKind::kCoreAttention, Pass::kForward, OpPart::kPlay) +
                       made.times.of(OpKind::kCoreAttention, Pass::kBackward, OpPart::kPlay);
  result.exchange_processor_s = result.played.processor_s - parts.computed_processor_s;
  result.times = made.times;
  return result;
}

StepInput stage_input(const PipelineParts& parts, const LlamaConfig& model, int rank,
                      std::shared_ptr<const GradientExchange> gradients) {
  StepInput input;
  const PipelineRequest& request = parts.request();
  for (size_t nano = 0; nano < request.homes.size(); ++nano) {
    input.tokens.push_back(made_up_tokens(request.nano_batches[nano],
                                          request.homes[nano].workers[parts.grid().replica(rank)],
                                          model.vocab_size));
  }
  input.program =
      step_program(model, {},
                   parts.part(rank, {.types = exchange_types(model.dtype, /*wide_gradients=*/false),
                                     .row_bytes = p2p_bytes(model, 1)}),
                   ProgramRequest::Kind::kTrain, std::move(gradients));
  return input;
}

}  // namespace distca::bench
