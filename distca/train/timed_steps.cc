#include "distca/train/timed_steps.h"

#include <algorithm>
#include <span>
#include <utility>

#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/base/random.h"
#include "distca/base/statistics.h"
#include "distca/comm/collectives.h"
#include "distca/config/run_grid.h"
#include "distca/forecast/batch_programs.h"

namespace distca {
namespace {

/// Rates of 1, so that a price is an amount: seconds of the profile, or gigabytes.
Machine machine_of_amounts(std::shared_ptr<const AttentionProfile> profile) {
  Machine machine{.name = "amounts", .attention = std::move(profile)};
  for (const MachineNumber rate :
       {MachineNumber::kLinearTflops, MachineNumber::kPhaseRate, MachineNumber::kAttentionRate,
        MachineNumber::kMemoryGbPerS, MachineNumber::kCopyGbPerS})
    machine.at(rate).value = 1;
  return machine;
}

LocalTokens random_tokens(const Config& config, const std::vector<Segment>& segments) {
  Random random(1);
  const auto draw = [&] {
    return static_cast<int64_t>(random.below(static_cast<uint64_t>(config.model.vocab_size)));
  };
  LocalTokens local;
  for (const Segment& segment : segments) {
    for (int64_t position = segment.tokens.begin; position < segment.tokens.end; ++position) {
      local.ids.push_back(draw());
      local.targets.push_back(draw());
      local.positions.push_back(position);
    }
  }
  return local;
}

}  // namespace

Config run_in_parts(Config config, int64_t parts, int64_t outstanding) {
  config.batch.nano_batch_tokens = std::max<int64_t>(1, config.batch.nano_batch_tokens / parts);
  config.batch.max_document_tokens =
      std::min(config.batch.max_document_tokens, config.batch.nano_batch_tokens);
  config.train.overlap = Overlap::kNone;
  config.train.recompute = Recompute::kNone;
  config.parallel.outstanding_weight_gradients = outstanding;
  config.plan.layout = "";
  config.plan.scheduler = "balanced";
  config.plan.tolerance = {};
  config.plan.max_tokens_per_worker = 0;
  config.plan.max_memory_gib = 0;
  config.servers.reweight = false;
  return config;
}

Batch uneven_batch(const Config& config) {
  const int64_t tokens = config.batch.nano_batch_tokens, most = config.batch.max_document_tokens;
  std::vector<int64_t> lengths = {std::min(most, (tokens + 1) / 2)};
  for (int64_t left = tokens - lengths[0]; left > 0; left -= lengths.back())
    lengths.push_back(std::min({left, most, std::max<int64_t>(128, tokens / 16)}));
  return Batch(static_cast<size_t>(config.batch.nano_batches),
               {.nano_batch = NanoBatch::from_lengths(lengths), .sources = {}});
}

TimedSteps::TimedSteps(Config config, int num_workers, WorkerWeights* weights, Communicator& comm,
                       std::shared_ptr<const AttentionProfile> profile)
    : config_(std::move(config)),
      amounts_(machine_of_amounts(std::move(profile))),
      weights_(weights),
      comm_(comm),
      step_(config_.model, weights ? &weights->model : nullptr, comm, step_options(config_)) {
  const Batch batch = uneven_batch(config_);
  const BatchPlans plans = plan_nano_batches(config_, batch, num_workers);
  const BatchPrograms programs(config_, plans, ProgramRequest::Kind::kTrain, num_workers);
  input_.program = programs.of(comm.rank(), weights ? weights->gradients : nullptr);
  if (!weights) return;
  const RunGrid run = run_grid(config_, num_workers);
  const int server = run.server_of(comm.rank());
  for (size_t nano = 0; nano < batch.size(); ++nano) {
    const Layout& layout =
        plans.pipeline ? plans.pipeline->request().homes[nano] : plans.plan(nano).layout;
    input_.tokens.push_back(
        random_tokens(config_, layout.workers[plans.pipeline ? run.grid.replica(server) : server]));
  }
}

void TimedSteps::play(bool counts) {
  TraceRecorder recorder;
  step_.set_recorder(&recorder);
  barrier(comm_, "measurement of the machine");
  const Stopwatch watch;
  UpdateRequest update = update_of(weights_);
  update.max_grad_norm = config_.optimizer.max_grad_norm;
  if (weights_) weights_->optimizer.zero_gradients();
  const StepResult result = step_.train(input_, config_.batch.nano_batch_tokens, update);
  const double step_s = watch.seconds();
  step_.set_recorder(nullptr);
  if (counts) add(result.times, recorder, step_s);
}

Json TimedSteps::figures() const {
  Json phases = Json::object(), sums = Json::object();
  const auto step_s = others_.find("step_s");
  const std::vector<size_t> counted =
      step_s == others_.end() ? std::vector<size_t>{} : middle_half(step_s->second);
  for (const auto& [name, rounds] : rounds_) {
    std::vector<double> seconds;
    for (const Sum& round : rounds) seconds.push_back(round.seconds);
    phases[name] = {{"s", mean_at(seconds, counted)},
                    {"flops", rounds[0].flops},
                    {"ops", rounds[0].ops},
                    {"tokens", rounds[0].tokens}};
  }
  for (const auto& [name, rounds] : others_) sums[name] = mean_at(rounds, counted);
  return {{"phases", std::move(phases)}, {"sums", std::move(sums)}};
}

void TimedSteps::add(const OpTimes& times, const TraceRecorder& recorder, double step_s) {
  const MachinePrices amounts(config_, amounts_, std::span(&input_.program, 1));
  std::map<std::string, Sum> phases;
  Figures others;
  double explained_s = 0;
  auto event = recorder.events().begin();
  for (const Op& op : input_.program.ops) {
    if (op.stream == Stream::kComm) {
      add_communication(op, amounts, others);
      continue;
    }
    while (event->kind != TraceKind::kCompute) ++event;
    DISTCA_CHECK(event->name == describe(op), "{} was recorded as {}", describe(op), event->name);
    const double seconds = event->end_s - event->begin_s;
    ++event;
    // The norm is where ranks meet. The last one does not wait there, and shows what it takes.
    if (op.kind == OpKind::kGradNorm) continue;
    explained_s += seconds;
    add_compute(op, seconds, amounts, phases, others);
  }
  for (int kind = 0; kind < kNumOpKinds; ++kind) {
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      const auto of = [&](OpPart part) { return times.of(static_cast<OpKind>(kind), pass, part); };
      others["copy_s"] += of(OpPart::kPack) + of(OpPart::kLand);
      others["issue_s"] += of(OpPart::kIssue);
      others["waited_s"] += of(OpPart::kWait);
    }
  }
  explained_s += others["copy_s"] + others["issue_s"] + others["waited_s"];
  others["step_s"] = step_s;
  others["besides_s"] = std::max(0., step_s - explained_s);
  for (const auto& [name, sum] : phases) rounds_[name].push_back(sum);
  for (const auto& [name, value] : others) others_[name].push_back(value);
}

void TimedSteps::add_compute(const Op& op, double seconds, const MachinePrices& amounts,
                             std::map<std::string, Sum>& phases, Figures& others) const {
  if (op.kind == OpKind::kCoreAttention || is_of_weights(op.kind)) {
    const std::string figure = op.kind == OpKind::kCoreAttention ? "attention" : "memory";
    others[figure] += 1e-12 * static_cast<double>(amounts.compute_ps(0, op));
    others[figure + "_s"] += seconds;
    return;
  }
  Sum& sum = phases[phase_name(op) + (op.pass == Pass::kForward ? "" : kBackwardMark)];
  sum.seconds += seconds;
  sum.flops += op.flops;
  sum.ops += 1;
  sum.tokens += static_cast<int64_t>(input_.tokens[static_cast<size_t>(op.nano_batch)].ids.size());
}

void TimedSteps::add_communication(const Op& op, const MachinePrices& amounts,
                                   Figures& others) const {
  const MessageList &sends = input_.program.sends(op), &receives = input_.program.receives(op);
  if (sends.empty() && receives.empty()) return;
  const CommunicationPrice price = amounts.communication(0, op, sends, receives);
  others["copy"] += 1e-12 * static_cast<double>(price.pack_ps + price.land_ps);
  others["issue"] += 1;
  others["issue_gb"] += 1e-9 * static_cast<double>(sends.bytes);
}

}  // namespace distca
