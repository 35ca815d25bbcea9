#include "tests/pipeline_parity_testing.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "distca/comm/ordered_sum.h"
#include "distca/comm/tags.h"
#include "distca/comm/thread_group.h"
#include "distca/comm/traced.h"
#include "distca/plan/exchange.h"
#include "distca/plan/scheduler.h"
#include "distca/program/pipeline_parts.h"
#include "distca/program/validate/validate.h"
#include "distca/runtime/memory_meter.h"
#include "distca/train/optimizer.h"
#include "distca/train/stage_p2p.h"
#include "distca/train/step_tracer.h"

namespace distca::parity {
namespace {

using testing::Order;

constexpr uint64_t kSeed = 11;

/// Makes what the ranks of a pipeline have to do.
class PipelineInputs {
 public:
  explicit PipelineInputs(const PipelineRun& what) : what_(what), parts_(step_of(what)) {
    const ValidateOptions checks = checks_of(find_scheduler(what.plan.scheduler));
    for (const std::string& violation : parts_.violations(checks)) ADD_FAILURE() << violation;
  }

  StepInput of_rank(int rank) const {
    const bool works = rank < what_.workers();
    const int server = rank / what_.tensor;
    StepInput input;
    StagePart part = parts_.part(
        server, {.types = exchange_types(what_.model.dtype, what_.options.wide_gradients),
                 .row_bytes = p2p_bytes(what_.model, 1),
                 .tensor = {.size = what_.tensor, .index = rank % what_.tensor}});
    std::shared_ptr<const GradientExchange> gradients;
    if (works) {
      const PipelineRequest& request = parts_.request();
      for (size_t nano = 0; nano < request.homes.size(); ++nano) {
        input.tokens.push_back(make_tokens(request.nano_batches[nano],
                                           request.homes[nano].workers[server % what_.replicas],
                                           what_.model.vocab_size, /*goes_on=*/false));
      }
      if (!what_.evaluate)
        gradients = gradient_exchange(what_.model, what_.options, part.stage, rank, what_.replicas);
    }
    input.program = step_program(
        what_.model, what_.options, std::move(part),
        what_.evaluate ? ProgramRequest::Kind::kEvaluate : ProgramRequest::Kind::kTrain,
        std::move(gradients), rank);
    return input;
  }

 private:
  static PipelineStepRequest step_of(const PipelineRun& what) {
    const bool pairs = what.options.overlap == Overlap::kPingPong && what.order != Order::kAtHome;
    PipelineStepRequest step{.request = {}, .layers = {}, .schedule = what.order};
    for (const int64_t layers : what.layers) {
      const int64_t begin = step.layers.empty() ? 0 : step.layers.back().end;
      step.layers.push_back({begin, begin + layers});
    }
    PipelineRequest& request = step.request;
    request.grid = {
        .stages = what.stages(), .replicas = what.replicas, .dedicated = what.dedicated};
    request.slots = pairs ? 2 : 1;
    request.trains = !what.evaluate;
    request.shape = what.model.divided(what.tensor).shape().attention;
    request.options = what.plan;
    for (const std::vector<int64_t>& lengths : what.nano_batches) {
      const NanoBatch& nano = request.nano_batches.emplace_back(NanoBatch::from_lengths(lengths));
      request.homes.push_back(
          make_layout({nano, Cluster::in_place(what.replicas), request.shape, request.options}));
    }
    request.outstanding_weight_gradients = what.outstanding;
    // Without speeds, nothing would wait. Core attention of the documents of most cases is 40 %.
    constexpr RankSpeed kSpeed{.linear_ps_per_token = 3'000'000,
                               .attention_ps_per_kload = 9'000'000};
    if (what.outstanding > 0) request.speeds.assign(request.grid.num_ranks(), kSpeed);
    return step;
  }

  const PipelineRun& what_;
  PipelineParts parts_;
};

/// The input of one worker alone, without a pipeline.
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
  input.program = step_program(
      what.model, what.options, /*holds_weights=*/true, kind, std::move(parts),
      what.evaluate ? nullptr
                    : gradient_exchange(what.model, what.options, whole_model(what.model), 0, 1));
  return input;
}

/// Gradients are summed in several buckets.
PipelineRun with_buckets(PipelineRun what) {
  what.options.bucket_mb = 0.04;  // several, of one block or two
  what.options.tensor = what.tensor;
  return what;
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

/// Plays the steps of a rank: one, or with a trace three, the last two of which are recorded.
class Player {
 public:
  Player(const PipelineRun& what, Communicator& comm, Step& step)
      : config_(config_of(what)),
        step_(step),
        tracer_(config_, comm, {.grid = what.grid(), .tensor = what.tensor}, 0) {}

  /// `groups` are recorded, too; `play` is called once a step.
  StepResult play(const std::vector<TracedCommunicator*>& groups,
                  const std::function<StepResult()>& play) {
    StepResult result;
    for (int64_t step = 1; step <= config_.train.steps; ++step) {
      tracer_.begin_step(step);
      record_to(tracer_.recorder(), groups);
      result = play();
      record_to(nullptr, groups);
      tracer_.end_step();
    }
    tracer_.write({"cpu"});
    return result;
  }

 private:
  static Config config_of(const PipelineRun& what) {
    Config config;
    config.train.overlap = what.options.overlap;
    config.train.trace = what.trace.string();
    config.train.trace_steps = 2;
    config.train.steps = what.trace.empty() ? 1 : 3;
    return config;
  }
  void record_to(TraceRecorder* recorder, const std::vector<TracedCommunicator*>& groups) {
    step_.set_recorder(recorder);
    for (TracedCommunicator* group : groups) group->set_recorder(recorder);
  }

  Config config_;
  Step& step_;
  StepTracer tracer_;
};

/// Plays the steps of a worker. Returns loss and norm of all, gradients and weights of its stage.
PipelineOutcome work(const PipelineRun& what, Communicator& comm, const StepInput& input) {
  const Stage& stage = input.program.stage;
  std::vector<int> ranks(what.replicas * what.tensor);
  std::iota(ranks.begin(), ranks.end(), stage.index * std::ssize(ranks));
  const auto all_workers = comm.split_first(what.workers());
  const auto of_stage = comm.split(ranks);
  TracedCommunicator all_stages(*all_workers, kTracedTags),
      replicas(*of_stage, kTracedTags + kTracedTagsEach, ranks);
  const MemoryMeter meter(comm.cuda_device());
  const Llama model(what.model, stage, kSeed, comm.cuda_device(), main_params_of(what.options));
  Step step(what.model, &model, comm, what.options);
  PipelineOutcome outcome;
  if (what.evaluate) {
    const StepResult result = step.evaluate(input);
    outcome.step.loss = result.loss_sum;
    outcome.step.bytes_sent = result.bytes.sent;
    outcome.bytes_tensor = {result.bytes_tensor};
    outcome.peak_bytes = {meter.peak_bytes()};
    ordered_sum(all_stages, std::span(&outcome.step.loss, 1), "loss");
    return outcome;
  }
  Optimizer optimizer(model, kSeed, {.weight_decay = 0.1}, input.program.gradients);
  const StepResult result = Player(what, comm, step).play({&all_stages, &replicas}, [&] {
    optimizer.zero_gradients();
    return step.train(input, num_targets(what),
                      {.optimizer = &optimizer,
                       .workers = &replicas,
                       .all_stages = &all_stages,
                       .max_grad_norm = 0.05,
                       .lr = 0.01});
  });
  outcome.step.loss = result.sum.loss_sum;
  outcome.step.bytes_sent = result.bytes.sent;
  outcome.bytes_tensor = {result.bytes_tensor};
  outcome.norm = result.sum.norm;
  outcome.peak_bytes = {meter.peak_bytes()};
  for (const at::Tensor& parameter : model.parameters()) {
    outcome.weights.push_back(parameter.detach().clone());
    if (!what.options.distributed_optimizer)
      outcome.step.gradients.push_back(parameter.grad().clone());
  }
  return outcome;
}

/// Plays the steps of a dedicated server.
PipelineOutcome serve(const PipelineRun& what, Communicator& comm, const StepInput& input) {
  const MemoryMeter meter(comm.cuda_device());
  Step step(what.model, nullptr, comm, what.options);
  const auto train = [&] { return step.train(input, num_targets(what), {}); };
  const StepResult result =
      what.evaluate ? step.evaluate(input) : Player(what, comm, step).play({}, train);
  EXPECT_EQ(result.loss_sum, 0);
  return {.step = {.bytes_sent = result.bytes.sent},
          .bytes_tensor = {result.bytes_tensor},
          .peak_bytes = {meter.peak_bytes()}};
}

/// Puts what a rank has of each of its weights, in the order of its table, into whole tensors by
/// name. Ranks that hold the same part must have the same bits.
class WholeTensors {
 public:
  explicit WholeTensors(const char* what) : what_(what) {}

  void add(int rank, const std::vector<Weight>& table, const std::vector<at::Tensor>& held) {
    for (size_t i = 0; i < held.size(); ++i) {
      const Weight& weight = table[i];
      at::Tensor& whole = tensors_[weight.name];
      if (!whole.defined()) whole = at::full(weight.shape, kMissing, held[i].options());
      at::Tensor part = part_of(weight.box, whole);
      if (seen_.emplace(weight.name, weight.box).second) {
        part.copy_(held[i]);
      } else {
        EXPECT_TRUE(at::equal(part, held[i])) << what_ << " " << weight.name << " of rank " << rank;
      }
    }
  }
  /// In the order of the whole model's table.
  std::vector<at::Tensor> all(const LlamaConfig& model) const {
    std::vector<at::Tensor> all;
    if (tensors_.empty()) return all;
    for (const Weight& weight : weight_table(model)) {
      all.push_back(tensors_.at(weight.name));
      EXPECT_FALSE((all.back() == kMissing).any().item<bool>()) << "a part of " << weight.name;
    }
    return all;
  }

 private:
  static constexpr double kMissing = 1e30;
  const char* what_;
  std::map<std::string, at::Tensor> tensors_;
  std::set<std::pair<std::string, std::vector<Range>>> seen_;
};

PipelineOutcome assemble(const PipelineRun& what, const std::vector<Program>& programs,
                         const std::vector<PipelineOutcome>& of_ranks) {
  PipelineOutcome all{.step = {.loss = of_ranks[0].step.loss}, .norm = of_ranks[0].norm};
  WholeTensors gradients("gradient"), weights("weight");
  for (int rank = 0; rank < what.ranks(); ++rank) {
    const PipelineOutcome& part = of_ranks[rank];
    all.step.bytes_sent += part.step.bytes_sent;
    all.bytes_tensor.push_back(part.bytes_tensor.at(0));
    all.peak_bytes.push_back(part.peak_bytes.at(0));
    if (rank >= what.workers()) continue;
    EXPECT_EQ(part.step.loss, all.step.loss) << "rank " << rank;
    EXPECT_EQ(part.norm, all.norm) << "rank " << rank;
    const std::vector<Weight> table = weight_table(what.model, programs[rank].stage);
    gradients.add(rank, table, part.step.gradients);
    weights.add(rank, table, part.weights);
  }
  all.step.gradients = gradients.all(what.model);
  all.weights = weights.all(what.model);
  return all;
}

}  // namespace

std::vector<Program> programs_of(const PipelineRun& what) {
  std::vector<Program> programs;
  for (StepInput& input : inputs_of(with_buckets(what)))
    programs.push_back(std::move(input.program));
  return programs;
}

PipelineOutcome run(const PipelineRun& run) {
  const PipelineRun what = with_buckets(run);
  const std::vector<StepInput> inputs = inputs_of(what);
  std::vector<Program> programs;
  for (const StepInput& input : inputs) programs.push_back(input.program);
  for (const std::string& violation : validate(programs)) ADD_FAILURE() << violation;
  std::vector<PipelineOutcome> outcomes(what.ranks());
  run_ranks(what.ranks(), {.timeout_s = 300}, [&](Communicator& comm) {
    at::set_num_threads(1);
    const int rank = comm.rank();
    outcomes[rank] = (rank < what.workers() ? work : serve)(what, comm, inputs[rank]);
  });
  return assemble(what, programs, outcomes);
}

}  // namespace distca::parity
