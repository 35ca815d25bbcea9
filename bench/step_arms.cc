#include "bench/step_arms.h"

#include "distca/base/clock.h"
#include "distca/base/random.h"
#include "distca/comm/collectives.h"
#include "distca/train/speed_sample.h"

namespace distca::bench {
LocalTokens made_up_tokens(const NanoBatch& nano_batch, const std::vector<Segment>& segments,
                           int64_t vocab_size) {
  LocalTokens local;
  const auto id = [&](int64_t document, int64_t position) {
    Random random(static_cast<uint64_t>(document), static_cast<uint64_t>(position));
    return static_cast<int64_t>(random.below(static_cast<uint64_t>(vocab_size)));
  };
  for (const Segment& segment : segments) {
    const int64_t last = nano_batch.documents[segment.document].length - 1;
    for (int64_t p = segment.tokens.begin; p < segment.tokens.end; ++p) {
      local.ids.push_back(id(segment.document, p));
      local.targets.push_back(p == last ? kNoTarget : id(segment.document, p + 1));
      local.positions.push_back(p);
    }
  }
  return local;
}

StepPlayer::StepPlayer(const LlamaConfig& model, uint64_t seed, Communicator& comm)
    : comm_(comm),
      llama_(model, seed, comm.cuda_device()),
      optimizer_(llama_, seed, options_,
                 gradient_exchange(model, {}, whole_model(model), comm.rank(), comm.size())) {}

size_t StepPlayer::add(const StepArm& arm) {
  arms_.push_back({arm, std::make_unique<Step>(llama_.config(), &llama_, comm_, arm.step)});
  return arms_.size() - 1;
}

/// This rank's part of planned nano-batches.
StepInput StepPlayer::input_of(const StepArm& arm, const std::vector<Plan>& plans) const {
  const LlamaConfig& model = llama_.config();
  StepInput input;
  for (const Plan& plan : plans) {
    input.tokens.push_back(
        made_up_tokens(plan.nano_batch, plan.layout.workers[comm_.rank()], model.vocab_size));
  }
  input.program = arm_program(arm, model, plans, comm_.rank(), optimizer_.exchange());
  return input;
}

PlayedStep StepPlayer::play(size_t index, const BatchLengths& batch) {
  const auto& [arm, step] = arms_.at(index);
  const std::vector<Plan> plans = plan_step(arm, llama_.config(), batch, comm_.size());
  const StepInput input = input_of(arm, plans);
  barrier(comm_, "begin of a step");
  PlayedStep played{.begin_s = steady_seconds()};
  const double processor_begin = process_processor_seconds();
  optimizer_.zero_gradients();
  const StepResult result = step->train(input, num_targets(batch),
                                        {.optimizer = &optimizer_,
                                         .workers = &comm_,
                                         .max_grad_norm = options_.max_grad_norm,
                                         .lr = options_.lr});
  played.end_s = steady_seconds();
  played.gradient_norm = result.sum.norm;
  played.processor_s = process_processor_seconds() - processor_begin;
  played.waited_s = result.times.of(OpPart::kWait);
  played.loss_sum = result.loss_sum;
  int64_t tokens = 0, pairs = 0;
  for (const Plan& plan : plans) {
    tokens += plan.layout.num_tokens(comm_.rank());
    pairs += plan.load[comm_.rank()].pairs;
  }
  played.sample = rank_sample(result.times, tokens, pairs);
  // Sums of gradients run under backward, so who is done first waits for the last within them.
  const RankSample& did = played.sample;
  played.computed_s =
      played.begin_s + 1e-9 * static_cast<double>(did.linear_ns + did.attention_ns + did.waited_ns);
  return played;
}

StepFigures StepPlayer::run(size_t index, const BatchLengths& batch) {
  const std::vector<PlayedStep> ranks = all_gather(comm_, play(index, batch), "figures of a step");
  return figures_of(ranks);
}

}  // namespace distca::bench
