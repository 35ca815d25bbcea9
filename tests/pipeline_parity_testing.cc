#include "tests/pipeline_parity_testing.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include "distca/comm/ordered_sum.h"
#include "distca/comm/thread_group.h"
#include "distca/plan/exchange.h"
#include "distca/plan/pipeline_plan.h"
#include "distca/program/validate.h"
#include "distca/train/hand_overs.h"
#include "distca/train/optimizer.h"

namespace distca::parity {
namespace {

using testing::Order;
using Parts = std::vector<std::shared_ptr<const AttentionExchange>>;

constexpr uint64_t kSeed = 11;

/// Makes what the ranks of a pipeline have to do.
class PipelineInputs {
 public:
  explicit PipelineInputs(const PipelineRun& what) : what_(what) {
    const bool pairs = what.options.overlap == Overlap::kPingPong && what.order != Order::kAtHome;
    shape_ = {.nano_batches = static_cast<int>(what.nano_batches.size()), .slots = pairs ? 2 : 1};
    int64_t begin = 0;
    for (const int64_t layers : what.layers) {
      shape_.layers.push_back({begin, begin + layers});
      begin += layers;
    }
    request_.grid = {
        .stages = what.stages(), .replicas = what.replicas, .dedicated = what.dedicated};
    request_.slots = shape_.slots;
    request_.trains = !what.evaluate;
    request_.shape = what.model.shape().attention;
    request_.options.scheduler = what.order == Order::kAtHome ? "local" : "balanced";
    for (const std::vector<int64_t>& lengths : what.nano_batches) {
      const NanoBatch& nano = request_.nano_batches.emplace_back(NanoBatch::from_lengths(lengths));
      request_.homes.push_back(
          make_layout({nano, Cluster::in_place(what.replicas), request_.shape, {}}));
    }
    order_ = order();
    for (const OrderedExchange& exchange : order_.exchanges)
      parts_.push_back(what.order == Order::kAtHome ? at_home(exchange.nano_batches[0])
                                                    : pooled(exchange.nano_batches, exchange.pass));
  }

  StepInput of_rank(int rank) const {
    StepInput input;
    const bool works = rank < what_.workers();
    Parts mine;
    for (const Parts& of_ranks : parts_) mine.push_back(of_ranks[rank]);
    StagePart part =
        stage_part(shape_, order_, works ? rank / what_.replicas : what_.stages(), mine);
    std::shared_ptr<const GradientExchange> gradients;
    if (works) {
      const int replica = rank % what_.replicas;
      for (size_t nano = 0; nano < request_.homes.size(); ++nano) {
        const Layout& home = request_.homes[nano];
        part.hand_overs.push_back(
            hand_over_messages(part.stage, rank, what_.replicas,
                               hand_over_bytes(what_.model, home.num_tokens(replica))));
        input.tokens.push_back(make_tokens(request_.nano_batches[nano], home.workers[replica],
                                           what_.model.vocab_size, /*goes_on=*/false));
      }
      if (!what_.evaluate)
        gradients = gradient_exchange(what_.model, what_.options, part.stage, rank, what_.replicas);
    }
    input.program = step_program(
        what_.model, what_.options, std::move(part),
        what_.evaluate ? ProgramRequest::Kind::kEvaluate : ProgramRequest::Kind::kTrain,
        std::move(gradients));
    return input;
  }

 private:
  PipelineOrder order() const {
    const std::vector<Tick> ticks =
        what_.order == Order::kAligned || what_.evaluate  // the others train
            ? aligned_ticks(what_.stages(), shape_.micro_batches(), !what_.evaluate)
            : one_forward_one_backward_ticks(what_.stages(), shape_.micro_batches());
    return what_.order == Order::kAtHome ? at_home_order(shape_, ticks)
                                         : pooled_order(shape_, ticks);
  }

  Parts pooled(const std::vector<int>& nano_batches, Pass pass) const {
    const Plan plan = make_slot_plan(request_, nano_batches, pass);
    const PlanIndex index(plan);
    Parts parts;
    for (int rank = 0; rank < what_.ranks(); ++rank)
      parts.push_back(attention_exchange(index, rank, what_.model, what_.options));
    return parts;
  }

  /// Of each rank: of a plan in which its stage alone works and serves.
  Parts at_home(int nano) const {
    Parts parts;
    for (int stage = 0; stage < what_.stages(); ++stage) {
      std::vector<int> alone(what_.stages(), -1);
      alone[stage] = nano;
      const Parts all = pooled(alone, Pass::kForward);
      const auto begin = all.begin() + stage * what_.replicas;
      parts.insert(parts.end(), begin, begin + what_.replicas);
    }
    return parts;
  }

  const PipelineRun& what_;
  PipelineShape shape_;
  PipelineRequest request_;
  PipelineOrder order_;
  std::vector<Parts> parts_;  // [exchange][rank]
};

/// Of one worker alone, without a pipeline.
StepInput input_of_one(const PipelineRun& what) {
  StepInput input;
  std::vector<NanoPart> parts;
  for (const std::vector<int64_t>& lengths : what.nano_batches) {
    const Plan plan = plan_by(planner("local"), what.model, lengths, 1, servers("in_place"));
    parts.push_back({attention_exchange(PlanIndex(plan), 0, what.model, what.options)});
    input.tokens.push_back(make_tokens(plan.nano_batch, plan.layout.workers[0],
                                       what.model.vocab_size, /*goes_on=*/false));
  }
  const auto kind = what.evaluate ? ProgramRequest::Kind::kEvaluate : ProgramRequest::Kind::kTrain;
  input.program =
      step_program(what.model, what.options, /*holds_weights=*/true, kind, std::move(parts),
                   what.evaluate ? nullptr : gradient_exchange(what.model, what.options, 0, 1));
  return input;
}

std::vector<StepInput> inputs_of(const PipelineRun& what) {
  if (what.ranks() == 1) return {input_of_one(what)};
  const PipelineInputs all(what);
  std::vector<StepInput> inputs;
  for (int rank = 0; rank < what.ranks(); ++rank) inputs.push_back(all.of_rank(rank));
  return inputs;
}

int64_t num_targets(const PipelineRun& what) {
  int64_t targets = 0;
  for (const std::vector<int64_t>& lengths : what.nano_batches) {
    for (const int64_t length : lengths) targets += length - 1;
  }
  return targets;
}

/// On a worker: loss and norm of all, gradients and weights of its stage.
PipelineOutcome work(const PipelineRun& what, Communicator& comm, const StepInput& input) {
  const Stage& stage = input.program.stage;
  std::vector<int> ranks(what.replicas);
  std::iota(ranks.begin(), ranks.end(), stage.index * what.replicas);
  const auto all_stages = comm.split_first(what.workers());
  const auto replicas = comm.split(ranks);
  const Llama model(what.model, stage, kSeed, comm.cuda_device(), masters_of(what.options));
  Step step(what.model, &model, comm, what.options);
  PipelineOutcome outcome;
  if (what.evaluate) {
    const StepResult result = step.evaluate(input);
    outcome.step.loss = result.loss_sum;
    outcome.step.bytes_sent = result.bytes.sent;
    ordered_sum(*all_stages, std::span(&outcome.step.loss, 1), "loss");
    return outcome;
  }
  Optimizer optimizer(model, kSeed, {.weight_decay = 0.1}, input.program.gradients);
  const StepResult result = step.train(input, num_targets(what),
                                       {.optimizer = &optimizer,
                                        .workers = replicas.get(),
                                        .all_stages = all_stages.get(),
                                        .max_grad_norm = 0.05,
                                        .lr = 0.01});
  outcome.step.loss = result.sum.loss_sum;
  outcome.step.bytes_sent = result.bytes.sent;
  outcome.norm = result.sum.norm;
  for (const at::Tensor& parameter : model.parameters()) {
    outcome.weights.push_back(parameter.detach().clone());
    if (!what.options.distributed_optimizer)
      outcome.step.gradients.push_back(parameter.grad().clone());
  }
  return outcome;
}

/// On a dedicated server.
PipelineOutcome serve(const PipelineRun& what, Communicator& comm, const StepInput& input) {
  Step step(what.model, nullptr, comm, what.options);
  const StepResult result =
      what.evaluate ? step.evaluate(input) : step.train(input, num_targets(what), {});
  EXPECT_EQ(result.loss_sum, 0);
  return {.step = {.bytes_sent = result.bytes.sent}};
}

/// The first replicas' parts end to end, which is the order of the table.
PipelineOutcome assemble(const PipelineRun& what, const std::vector<PipelineOutcome>& of_ranks) {
  PipelineOutcome all{.step = {.loss = of_ranks[0].step.loss}, .norm = of_ranks[0].norm};
  for (int rank = 0; rank < what.ranks(); ++rank) {
    const PipelineOutcome& part = of_ranks[rank];
    all.step.bytes_sent += part.step.bytes_sent;
    if (rank >= what.workers()) continue;
    EXPECT_EQ(part.step.loss, all.step.loss) << "rank " << rank;
    EXPECT_EQ(part.norm, all.norm) << "rank " << rank;
    const PipelineOutcome& first = of_ranks[rank - rank % what.replicas];
    for (size_t i = 0; i < part.weights.size(); ++i)
      EXPECT_TRUE(at::equal(part.weights[i], first.weights[i])) << "rank " << rank;
    if (rank % what.replicas > 0) continue;
    const auto append = [](std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    append(all.step.gradients, part.step.gradients);
    append(all.weights, part.weights);
  }
  return all;
}

}  // namespace

PipelineOutcome run(const PipelineRun& run) {
  PipelineRun what = run;
  what.options.bucket_mb = 0.02;  // several
  const std::vector<StepInput> inputs = inputs_of(what);
  std::vector<Program> programs;
  for (const StepInput& input : inputs) programs.push_back(input.program);
  for (const std::string& violation : validate(programs)) ADD_FAILURE() << violation;
  std::vector<PipelineOutcome> outcomes(what.ranks());
  run_ranks(what.ranks(), {.timeout_s = 120}, [&](Communicator& comm) {
    at::set_num_threads(1);
    const int rank = comm.rank();
    outcomes[rank] = (rank < what.workers() ? work : serve)(what, comm, inputs[rank]);
  });
  return assemble(what, outcomes);
}

}  // namespace distca::parity
