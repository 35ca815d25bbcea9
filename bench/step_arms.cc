#include "bench/step_arms.h"

#include <time.h>

#include <memory>
#include <span>

#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/base/random.h"
#include "distca/comm/collectives.h"
#include "distca/plan/choose_tolerance.h"
#include "distca/plan/exchange.h"
#include "distca/train/config.h"
#include "distca/train/optimizer.h"

namespace distca::bench {
namespace {

/// Of all threads of this process.
double process_processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

PlanRequest request_of(const StepArm& arm, const LlamaConfig& model,
                       const std::vector<int64_t>& lengths, int num_workers) {
  PlanRequest request;
  request.nano_batch = NanoBatch::from_lengths(lengths);
  request.cluster = Cluster::in_place(num_workers);
  if (!arm.capacity.empty()) request.cluster.capacity = arm.capacity;
  request.cluster.max_tokens_per_worker = arm.max_tokens_per_worker;
  request.shape = {.num_heads = model.num_attention_heads,
                   .num_kv_heads = model.num_key_value_heads,
                   .head_dim_qk = model.head_dim,
                   .head_dim_v = model.head_dim,
                   .element_bytes = element_bytes(model.dtype),
                   .window_left = model.sliding_window > 0 ? model.sliding_window - 1 : -1};
  request.options = arm.plan;
  request.profile = arm.profile;
  return request;
}

}  // namespace

std::vector<Plan> plan_step(const StepArm& arm, const LlamaConfig& model, const BatchLengths& batch,
                            int num_workers) {
  std::vector<Plan> plans;
  for (const std::vector<int64_t>& lengths : arm.one_nano_batch ? merged(batch) : batch) {
    const PlanRequest request = request_of(arm, model, lengths, num_workers);
    plans.push_back(arm.weighed ? choose_tolerance(request, *arm.weighed).plan
                                : make_plan(request));
  }
  return plans;
}

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

StepInput step_input(const StepArm& arm, const LlamaConfig& model, const std::vector<Plan>& plans,
                     int rank) {
  StepInput input;
  std::vector<NanoPart> parts;
  for (const Plan& plan : plans) {
    parts.push_back({attention_exchange(PlanIndex(plan), rank, model, arm.step), arm.redispatched});
    if (rank >= plan.cluster.num_workers) continue;
    input.tokens.push_back(
        made_up_tokens(plan.nano_batch, plan.layout.workers[rank], model.vocab_size));
  }
  input.program = step_program(model, arm.step, rank < plans[0].cluster.num_workers,
                               ProgramRequest::Kind::kTrain, std::move(parts));
  return input;
}

struct StepPlayer::State {
  /// An arm and what plays it.
  struct Playable {
    StepArm arm;
    Step step;
  };
  Communicator& comm;
  Llama llama;
  Config::Optimizer options;
  Optimizer optimizer;
  std::vector<std::unique_ptr<Playable>> arms;

  State(const LlamaConfig& model, uint64_t seed, Communicator& comm_in)
      : comm(comm_in),
        llama(model, seed, comm_in.cuda_device()),
        optimizer(llama.parameters(), options) {}
};

StepPlayer::StepPlayer(const LlamaConfig& model, uint64_t seed, Communicator& comm)
    : state_(std::make_unique<State>(model, seed, comm)) {}
StepPlayer::~StepPlayer() = default;

size_t StepPlayer::add(StepArm arm) {
  State& s = *state_;
  const StepOptions options = arm.step;
  s.arms.emplace_back(new State::Playable{
      .arm = std::move(arm), .step = Step(s.llama.config(), &s.llama, s.comm, options)});
  return s.arms.size() - 1;
}

const StepArm& StepPlayer::arm(size_t index) const { return state_->arms.at(index)->arm; }
void StepPlayer::set_capacity(size_t arm, std::vector<int64_t> capacity) {
  state_->arms.at(arm)->arm.capacity = std::move(capacity);
}
const Llama& StepPlayer::llama() const { return state_->llama; }
void StepPlayer::set_recorder(size_t arm, TraceRecorder* recorder) {
  state_->arms.at(arm)->step.set_recorder(recorder);
}

PlayedStep StepPlayer::play(size_t index, const BatchLengths& batch, StepResult* result) {
  State& s = *state_;
  auto& [arm, step] = *s.arms.at(index);
  const LlamaConfig& model = s.llama.config();
  const std::vector<Plan> plans = plan_step(arm, model, batch, s.comm.size());
  const StepInput input = step_input(arm, model, plans, s.comm.rank());
  barrier(s.comm, "begin of a step");
  PlayedStep played{.begin_s = steady_seconds()};
  const double processor_begin = process_processor_seconds();
  s.optimizer.zero_gradients();
  const auto sum_gradients = [&] {
    played.computed_s = steady_seconds();
    played.gradient_norm = s.optimizer.sum_and_clip(s.comm);
  };
  StepResult step_result = step.train(input, num_targets(batch), sum_gradients,
                                      [&] { s.optimizer.update(s.options.lr); });
  played.end_s = steady_seconds();
  played.processor_s = process_processor_seconds() - processor_begin;
  played.waited_s = step_result.times.of(OpPart::kWait);
  played.loss_sum = step_result.loss_sum;
  if (result != nullptr) *result = std::move(step_result);
  return played;
}

StepFigures StepPlayer::run(size_t arm, const BatchLengths& batch) {
  return figures_of(all_gather(state_->comm, play(arm, batch), "figures of a step"));
}

}  // namespace distca::bench
