#include "tests/parity_testing.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "distca/base/random.h"
#include "distca/comm/ordered_sum.h"
#include "distca/config/config.h"
#include "distca/forecast/plan_request.h"
#include "distca/plan/exchange.h"
#include "distca/plan/plan_testing.h"
#include "distca/plan/scheduler.h"
#include "distca/plan/validate.h"
#include "distca/program/validate/validate.h"
#include "distca/train/optimizer.h"
#include "distca/train/same_result.h"

namespace distca::parity {
namespace {

/// [rank] The input of the rank's step.
std::vector<StepInput> inputs_of(const StepRun& what, const StepOptions& options, int num_ranks) {
  std::vector<StepInput> inputs(num_ranks);
  std::vector<std::vector<NanoPart>> parts(num_ranks);
  for (const std::vector<int64_t>& lengths : what.documents.nano_batches) {
    const auto plan_for = [&](size_t window, const Plan* first) {
      return plan_by(planner(what.planner), what.model, lengths, what.workers, what.play.servers,
                     window, first);
    };
    const Plan plan = plan_for(0, nullptr);
    for (size_t window = 0; window < what.model.windows().size(); ++window) {
      const Plan of_window = window == 0 ? plan : plan_for(window, &plan);
      const PlanIndex index(of_window);  // borrows it
      for (int rank = 0; rank < num_ranks; ++rank)
        parts[rank].push_back(
            {attention_exchange(index, rank, what.model, options, window), what.play.redispatched});
    }
    for (int rank = 0; rank < what.workers; ++rank) {
      inputs[rank].tokens.push_back(make_tokens(plan.nano_batch, plan.layout.workers[rank],
                                                what.model.vocab_size, what.documents.goes_on));
    }
  }
  const auto kind = what.evaluate ? ProgramRequest::Kind::kEvaluate : ProgramRequest::Kind::kTrain;
  for (int rank = 0; rank < num_ranks; ++rank) {
    inputs[rank].program = step_program(
        what.model, options, rank < what.workers, kind, std::move(parts[rank]),
        what.evaluate || rank >= what.workers
            ? nullptr
            : gradient_exchange(what.model, options, whole_model(what.model), rank, what.workers));
  }
  return inputs;
}

void check_programs(const std::vector<StepInput>& inputs) {
  std::vector<Program> programs;
  for (const StepInput& input : inputs) programs.push_back(input.program);
  for (const std::string& violation : validate(programs)) ADD_FAILURE() << violation;
}

int64_t num_targets(const Documents& documents) {
  int64_t targets = 0;
  for (const std::vector<int64_t>& lengths : documents.nano_batches) {
    for (const int64_t length : lengths) targets += documents.goes_on ? length : length - 1;
  }
  return targets;
}

/// Plays the step on a worker. Returns the loss, summed over the workers, and on the first worker
/// the gradients.
Outcome work(const StepRun& what, const StepOptions& options, Communicator& comm,
             const StepInput& input) {
  const auto workers = comm.split_first(what.workers);
  const Llama model(what.model, 11, comm.cuda_device());
  std::shared_ptr<const GradientExchange> gradients = input.program.gradients;
  if (gradients == nullptr)  // it evaluates
    gradients =
        gradient_exchange(what.model, options, whole_model(what.model), comm.rank(), what.workers);
  Optimizer optimizer(model, 11, {}, gradients);
  Step step(what.model, &model, comm, options);
  std::shared_ptr<void> watch = what.watch ? what.watch(comm.rank(), step) : nullptr;
  const StepResult result = what.evaluate
                                ? step.evaluate(input)
                                : step.train(input, num_targets(what.documents),
                                             {.optimizer = &optimizer,
                                              .workers = workers.get(),
                                              .accepts = [](const GradientSum&) { return false; }});
  watch.reset();
  Outcome outcome{.loss = result.loss_sum, .gradients = {}, .bytes_sent = result.bytes.sent};
  ordered_sum(*workers, std::span(&outcome.loss, 1), "loss");
  if (what.evaluate || comm.rank() != 0) return outcome;
  for (const at::Tensor& parameter : model.parameters())
    outcome.gradients.push_back(parameter.grad().cpu().clone());
  return outcome;
}

/// Plays the step on a dedicated server.
Outcome serve(const StepRun& what, const StepOptions& options, Communicator& comm,
              const StepInput& input) {
  Step step(what.model, nullptr, comm, options);
  const std::shared_ptr<void> watch = what.watch ? what.watch(comm.rank(), step) : nullptr;
  const StepResult result =
      what.evaluate ? step.evaluate(input) : step.train(input, num_targets(what.documents), {});
  EXPECT_EQ(result.loss_sum, 0);
  return {.loss = 0, .gradients = {}, .bytes_sent = result.bytes.sent};
}

}  // namespace

LocalTokens make_tokens(const NanoBatch& nano_batch, const std::vector<Segment>& segments,
                        int64_t vocab_size, bool goes_on) {
  LocalTokens local;
  auto id = [&](int64_t document, int64_t position) {
    return static_cast<int64_t>(Random(document * 1'000'003 + position).below(vocab_size));
  };
  for (const Segment& segment : segments) {
    for (int64_t p = segment.tokens.begin; p < segment.tokens.end; ++p) {
      const bool last = p + 1 == nano_batch.documents[segment.document].length;
      local.ids.push_back(id(segment.document, p));
      local.targets.push_back(last && !goes_on ? kNoTarget : id(segment.document, p + 1));
      local.positions.push_back(p);
    }
  }
  return local;
}

Documents both_ways(const char* name, std::vector<int64_t> lengths, bool goes_on) {
  std::vector<int64_t> reversed(lengths.rbegin(), lengths.rend());
  return {name, {std::move(lengths), std::move(reversed)}, goes_on};
}

const std::vector<Documents>& batches() {
  // Seven workers: documents must be cut, shared and missing.
  static const std::vector<Documents> all = {
      both_ways("one_document_over_all_workers", {1800}),
      both_ways("many_tiny_ones", std::vector<int64_t>(40, 17)),
      both_ways("odd_lengths", {1, 2, 127, 128, 129, 511, 700, 3}),
      both_ways("one_token", {1}, true),
      both_ways("an_empty_worker", {130, 5}),  // more workers than blocks
      {"uneven_partners", {{700, 40, 129}, {60, 1}}},
      {"an_odd_partner", {{257, 90}, {300}, {129, 128, 33}}},
      {"an_empty_partner", {{}, {400, 129, 7}}},
  };
  return all;
}

const std::vector<Planner>& planners() {
  static const std::vector<Planner> all = {
      {.name = "local", .scheduler = "local"},
      {.name = "greedy", .scheduler = "greedy"},
      {.name = "balanced", .scheduler = "balanced"},
      {.name = "balanced_sequential", .scheduler = "balanced", .layout = "sequential"},
      {.name = "balanced_keys", .scheduler = "balanced", .split_kv = true},
      {.name = "balanced_spread", .scheduler = "balanced", .split_kv = true, .spread = true},
      {.name = "per_document_cp", .scheduler = "per-document-cp"},
      {.name = "wlb", .scheduler = "wlb"},
      {.name = "greedy_cut", .scheduler = "greedy", .cut_tasks = true},
  };
  return all;
}
const Planner& planner(const std::string& name) {
  return *std::ranges::find(planners(), name, &Planner::name);
}

const std::vector<Servers>& servers() {
  static const std::vector<Servers> all = {
      {"in_place"},
      {"one_dedicated", 0, {1}},
      {"mixed_with_one", 2, {3}},
      {"mixed_with_two", 2, {3, 1}},
  };
  return all;
}
const Servers& servers(const std::string& name) {
  return *std::ranges::find(servers(), name, &Servers::name);
}

const std::vector<Play>& plays() {
  static const std::vector<Play> all = [] {
    std::vector<Play> plays;
    for (const OverlapName& overlap : kOverlaps) {
      for (const Servers& who : servers()) {
        for (const bool redispatched : {false, true})
          plays.push_back({overlap.overlap, redispatched, who});
      }
    }
    return plays;
  }();
  return all;
}

std::string name_of(const Play& play) {
  std::string overlap(std::ranges::find(kOverlaps, play.overlap, &OverlapName::overlap)->name);
  std::ranges::replace(overlap, '-', '_');
  return fmt::format("{}_{}_{}", overlap, play.redispatched ? "redispatched" : "kept",
                     play.servers.name);
}

LlamaConfig small_llama(int64_t num_kv_heads, ScalarType dtype, int64_t num_layers) {
  LlamaConfig config;
  config.vocab_size = 31;
  config.hidden_size = 32;
  config.intermediate_size = 40;
  config.num_hidden_layers = num_layers;
  config.num_attention_heads = 4;
  config.num_key_value_heads = num_kv_heads;
  config.head_dim = 8;
  config.initializer_range = 0.2;  // attention far from uniform: a wrong mask shows
  config.dtype = dtype;
  return config;
}

Plan plan_by(const Planner& planner, const LlamaConfig& model, const std::vector<int64_t>& lengths,
             int workers, const Servers& servers, size_t window, const Plan* first) {
  Config config;
  config.model = model;
  config.plan.scheduler = planner.scheduler;
  config.plan.layout = planner.layout;
  config.plan.split_kv = planner.split_kv;
  config.plan.spread = planner.spread;
  PlanRequest request = plan_request(config, NanoBatch::from_lengths(lengths), workers, {}, window);
  std::vector<int64_t>& capacity = request.cluster.capacity;
  capacity.assign(workers, servers.worker_capacity);
  capacity.insert(capacity.end(), servers.dedicated.begin(), servers.dedicated.end());
  Plan plan = first == nullptr ? make_plan(request) : make_plan(request, first->layout);
  ValidateOptions checks = checks_of(find_scheduler(plan.options.scheduler));
  if (planner.cut_tasks) {
    Random random(9);
    testing::cut_tasks(plan, random);
    checks.capacities = false;
  }
  for (const std::string& violation : validate(plan, checks)) ADD_FAILURE() << violation;
  return plan;
}

Outcome run(const StepRun& what) {
  StepOptions options = what.options;
  options.overlap = what.play.overlap;
  options.bucket_mb = 0.02;  // several
  const int ranks = what.workers + static_cast<int>(what.play.servers.dedicated.size());
  std::vector<StepInput> inputs = inputs_of(what, options, ranks);
  check_programs(inputs);
  if (what.change) what.change(inputs);
  std::vector<Outcome> outcomes(ranks);
  const auto body = [&](Communicator& comm) {
    at::set_num_threads(1);
    const int rank = comm.rank();
    outcomes[rank] = (rank < what.workers ? work : serve)(what, options, comm, inputs[rank]);
  };
  // The timeout is longer than usual, for other work may run at the same time as the whole grid,
  // but shorter than the test may take: an error names the rank that was awaited.
  run_ranks(ranks, {.timeout_s = 300}, body, what.device);
  for (int rank = 1; rank < ranks; ++rank) outcomes[0].bytes_sent += outcomes[rank].bytes_sent;
  return outcomes[0];
}

double largest_difference(const Outcome& got, const Outcome& want) {
  double largest = std::abs(got.loss - want.loss) / std::abs(want.loss);
  for (size_t i = 0; i < want.gradients.size(); ++i) {
    if (want.gradients[i].abs().max().item<double>() == 0) continue;
    largest = std::max(largest, difference(got.gradients[i], want.gradients[i]));
  }
  return largest;
}

void expect_same(const Outcome& got, const Outcome& want, double bound, double zero_bound,
                 const std::string& what) {
  EXPECT_LE(std::abs(got.loss - want.loss), bound * std::abs(want.loss)) << what;
  ASSERT_EQ(got.gradients.size(), want.gradients.size());
  for (size_t i = 0; i < want.gradients.size(); ++i) {
    const bool zero = want.gradients[i].abs().max().item<double>() == 0;
    EXPECT_LE(difference(got.gradients[i], want.gradients[i]), zero ? zero_bound : bound)
        << what << ", parameter " << i;
  }
}

void expect_same_bits(const Outcome& got, const Outcome& want, const std::string& what) {
  EXPECT_EQ(got.loss, want.loss) << what;
  ASSERT_EQ(got.gradients.size(), want.gradients.size());
  for (size_t i = 0; i < want.gradients.size(); ++i) {
    EXPECT_TRUE(at::equal(got.gradients[i], want.gradients[i])) << what << ", parameter " << i;
  }
}

double format_bound(ScalarType dtype) {
  constexpr int64_t kLayers = 2, kRows = 3600;
  return distca::format_bound(dtype, kLayers, kRows);
}

}  // namespace distca::parity
