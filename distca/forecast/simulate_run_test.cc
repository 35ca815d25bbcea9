#include "distca/forecast/simulate_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "distca/base/error.h"
#include "distca/forecast/batch_programs.h"
#include "distca/forecast/op_prices.h"
#include "distca/forecast/simulate_testing.h"
#include "distca/sim/player.h"

namespace distca {
namespace {

Batch batch_of(int nano_batches) {
  const std::vector<std::vector<int64_t>> kinds = {{12000, 3000, 1384}, {9000, 7000, 384}};
  Batch batch;
  for (int i = 0; i < nano_batches; ++i)
    batch.push_back({.nano_batch = NanoBatch::from_lengths(kinds[i % 2]), .sources = {}});
  return batch;
}

SimulatedStep simulate(std::vector<std::string> overrides, int workers, int nano_batches = 2,
                       const Machine& machine = machine_by_name("h200")) {
  overrides.insert(overrides.begin(), kModel.begin(), kModel.end());
  overrides.push_back("batch.nano_batches=" + std::to_string(nano_batches));
  const Config config = load_config("", overrides);
  return simulate_step(config, batch_of(nano_batches), workers, machine);
}

double all_of(const StepParts& parts) {
  return parts.computed() + parts.copied + parts.issued + parts.late + parts.exposed + parts.idle +
         parts.besides;
}

TEST(SimulateStep, parts_of_every_stage_add_up_to_the_step) {
  for (const auto& [overrides, workers] :
       {std::pair{std::vector<std::string>{}, 3},
        std::pair{std::vector<std::string>{"servers.dedicated=1", "train.overlap=within"}, 2},
        std::pair{std::vector<std::string>{"parallel.pipeline_model_parallel_size=2"}, 4},
        std::pair{std::vector<std::string>{"parallel.tensor_model_parallel_size=2",
                                           "parallel.use_distributed_optimizer=true"},
                  4}}) {
    const SimulatedStep step = simulate(overrides, workers, 4);
    ASSERT_FALSE(step.stages.empty());
    for (const SimulatedStage& stage : step.stages) {
      EXPECT_NEAR(all_of(stage.mean), step.seconds, 1e-9) << stage.name;
      EXPECT_GT(stage.peak.total(), 0) << stage.name;
    }
    EXPECT_LT(step.busy_s, step.seconds);
    EXPECT_LT(step.even_attention_s, 1.0001 * step.seconds);
    EXPECT_GT(step.share_of_peak, 0);
  }
}

TEST(SimulateStep, stages_and_servers_have_names) {
  const auto names = [](const SimulatedStep& step) {
    std::vector<std::string> all;
    for (const SimulatedStage& stage : step.stages) all.push_back(stage.name);
    return all;
  };
  EXPECT_THAT(names(simulate({}, 2)), ::testing::ElementsAre("workers"));
  EXPECT_THAT(
      names(simulate({"parallel.pipeline_model_parallel_size=2", "servers.dedicated=1"}, 4, 4)),
      ::testing::ElementsAre("stage 0", "stage 1", "servers"));
}

/// All wait for a slow rank, unless plans give it less core attention.
TEST(SimulateStep, a_slow_rank_takes_longer_and_reweighting_gives_it_less) {
  const auto seconds = [](const std::vector<std::string>& more, const std::map<int, double>& slow) {
    std::vector<std::string> words = kModel;
    words.insert(words.end(), more.begin(), more.end());
    words.insert(words.end(), {"batch.nano_batches=2", "train.deterministic=false"});
    return simulate_step(load_config("", words), batch_of(2), 4, machine_by_name("h200"),
                         {.slow_ranks = slow})
        .seconds;
  };
  const double even = seconds({}, {}), slow = seconds({}, {{2, 0.5}});
  EXPECT_EQ(seconds({}, {{2, 1.0}}), even);
  EXPECT_GT(slow, 1.5 * even);
  EXPECT_LT(slow, 2.001 * even);
  const double reweighted = seconds({"servers.reweight=true"}, {{2, 0.5}});
  EXPECT_LT(reweighted, 0.97 * slow);
  EXPECT_GT(reweighted, even);
  const std::vector<std::string> tensor = {"parallel.tensor_model_parallel_size=2"};
  EXPECT_EQ(seconds(tensor, {{2, 0.5}}), seconds(tensor, {{3, 0.5}}));  // they divide layers
  EXPECT_GT(seconds(tensor, {{3, 0.5}}), 1.3 * seconds(tensor, {}));
  EXPECT_EQ(seconds(tensor, {{2, 0.5}, {3, 0.9}}), seconds(tensor, {{2, 0.5}}));
}

/// A worker alone waits for nobody: a step is what it computes, at the rates of the machine.
TEST(SimulateStep, one_worker_takes_what_it_computes) {
  const Machine machine = machine_by_name("h200");
  const SimulatedStep step = simulate({}, 1);
  EXPECT_NEAR(step.busy_s, step.seconds, 1e-9);
  EXPECT_NEAR(step.even_attention_s, step.seconds, 1e-9);
  EXPECT_NEAR(step.tokens_per_s, 2 * 16384 / step.seconds, 1e-6);
  const StepParts& mean = step.stages[0].mean;
  EXPECT_EQ(mean.late + mean.exposed + mean.idle + mean.copied + mean.issued, 0);
  // 4 calls of each layer take 25 us each; with the rate doubled the tasks take half.
  Machine doubled = machine;
  doubled.at(MachineNumber::kAttentionRate).value = 2;
  const double calls = 16 * 25e-6;
  const double attention = simulate({}, 1, 2, doubled).stages[0].mean.attention;
  EXPECT_NEAR(2 * (attention - calls), mean.attention - calls, 1e-9);
}

TEST(SimulateStep, plain_packing_is_the_step_of_scheduler_local) {
  const SimulatedStep step = simulate({"train.overlap=none"}, 3);
  const SimulatedStep plain = simulate({"train.overlap=none", "plan.scheduler=local"}, 3);
  EXPECT_DOUBLE_EQ(step.plain_packing_s, plain.seconds);
  EXPECT_GT(step.plain_packing_s, step.seconds);
  EXPECT_EQ(plain.plain_packing_s, 0) << "it is what the run has";
  for (const std::string only_balanced :
       {"plan.split_kv=true", "plan.spread=true", "plan.tolerance=auto", "plan.max_memory_gib=9",
        "servers.capacity=[3, 1, 2]"})
    EXPECT_DOUBLE_EQ(simulate({"train.overlap=none", only_balanced}, 3).plain_packing_s,
                     plain.seconds)
        << only_balanced;
  EXPECT_EQ(simulate({"parallel.pipeline_model_parallel_size=2"}, 4, 4).plain_packing_s, 0);
  EXPECT_EQ(simulate({"servers.dedicated=1"}, 2).plain_packing_s, 0);
}

TEST(SimulateStep, recomputing_all_computes_a_third_of_the_linear_work_again) {
  const double once = simulate({}, 1).stages[0].mean.linear;
  const double again = simulate({"train.recompute=full"}, 1).stages[0].mean.linear;
  EXPECT_GT(again, 1.25 * once);
  EXPECT_LT(again, 1.34 * once);
}

TEST(SimulateStep, what_would_help_most_stands_first) {
  Machine machine = machine_by_name("h200");
  machine.at(MachineNumber::kBetweenGbPerS).value = 0.5;  // messages take nearly all of the step
  machine.at(MachineNumber::kRanksPerNode).value = 1;
  const SimulatedStep step = simulate({"train.overlap=none"}, 2, 2, machine);
  ASSERT_FALSE(step.sensitivities.empty());
  EXPECT_EQ(step.sensitivities[0].number, MachineNumber::kBetweenGbPerS);
  EXPECT_GT(step.sensitivities[0].shorter, 0.1);
  EXPECT_LT(step.sensitivities[0].shorter, 0.17) << "a sixth of what bytes take";
}

TEST(SimulateStep, threads_change_nothing_and_sensitivities_may_be_left_out) {
  std::vector<std::string> overrides = kModel;
  overrides.insert(overrides.end(),
                   {"parallel.pipeline_model_parallel_size=2", "batch.nano_batches=4"});
  const Config config = load_config("", overrides);
  const Machine machine = machine_by_name("h200");
  const auto with = [&](const SimulateOptions& options) {
    return simulate_step(config, batch_of(4), /*num_workers=*/4, machine, options);
  };
  const SimulatedStep one = with({.threads = 1}), three = with({.threads = 3});
  const SimulatedStep alone = with({.sensitivities = false, .threads = 1});
  EXPECT_EQ(one.figures.hash, three.figures.hash);
  EXPECT_EQ(one.seconds, three.seconds);
  EXPECT_EQ(one.seconds, alone.seconds);
  ASSERT_EQ(one.sensitivities.size(), three.sensitivities.size());
  EXPECT_FALSE(one.sensitivities.empty());
  EXPECT_TRUE(alone.sensitivities.empty());
  for (size_t i = 0; i < one.sensitivities.size(); ++i) {
    EXPECT_EQ(one.sensitivities[i].number, three.sensitivities[i].number);
    EXPECT_EQ(one.sensitivities[i].shorter, three.sensitivities[i].shorter);
  }
}

TEST(SimulateStep, ranks_that_divide_layers_evenly_are_played_as_one) {
  EXPECT_TRUE(simulate({"parallel.tensor_model_parallel_size=2"}, 4).one_of_each_server);
  EXPECT_FALSE(simulate({}, 4).one_of_each_server);
  EXPECT_FALSE(simulate({"parallel.tensor_model_parallel_size=2", "model.vocab_size=513"}, 4)
                   .one_of_each_server);
}

/// A machine whose phases were measured, with times that are in proportion to FLOPs at the rate of
/// `machine`, as long as `longer` times.
Machine with_phases(const std::vector<std::string>& overrides, Machine machine, double longer = 1) {
  std::vector<std::string> all = kModel;
  all.insert(all.end(), overrides.begin(), overrides.end());
  all.insert(all.end(), {"batch.nano_batches=2", "parallel.pipeline_model_parallel_size=1",
                         "train.recompute=none"});
  const Config config = load_config("", all);
  const BatchPlans plans = plan_later_batch(config, batch_of(2), /*num_workers=*/1);
  const Program program =
      BatchPrograms(config, plans, ProgramRequest::Kind::kTrain, /*num_workers=*/1).of(0);
  std::map<std::pair<std::string, Pass>, PhaseTimes> phases;
  for (const Op& op : program.ops) {
    if (op.stream != Stream::kCompute || is_of_weights(op.kind)) continue;
    if (op.kind == OpKind::kCoreAttention) continue;
    const int64_t flops_per_token = std::llround(op.flops / 16384);
    const double ns = longer * 1e3 * static_cast<double>(flops_per_token) * 16384 /
                      (machine.of(MachineNumber::kLinearTflops) * 1e6);
    phases[{op_name(op.kind), op.pass}] = {
        .phase = op_name(op.kind),
        .pass = op.pass,
        .flops_per_token = flops_per_token,
        .tokens = {16384, 2 * 16384},
        .ns = {std::max<int64_t>(1, std::llround(ns)), std::max<int64_t>(2, std::llround(2 * ns))}};
  }
  for (const auto& [name, times] : phases) machine.phases.push_back(times);
  machine.settings = phase_settings(config);
  return machine;
}

/// Also for fewer tokens than were measured, backward that leaves gradients by matrices to others,
/// and what is computed again.
TEST(SimulateStep, measured_phases_in_proportion_to_flops_are_as_those_at_a_rate) {
  const Machine machine = machine_by_name("h200");
  for (const std::vector<std::string>& overrides :
       {std::vector<std::string>{},
        {"train.recompute=full"},
        {"parallel.pipeline_model_parallel_size=2", "parallel.outstanding_weight_gradients=2"}}) {
    const Machine measured = with_phases(overrides, machine);
    ASSERT_GE(measured.phases.size(), 6U);
    const double at_rate = simulate(overrides, 4, 4, machine).stages[0].mean.linear;
    EXPECT_NEAR(simulate(overrides, 4, 4, measured).stages[0].mean.linear / at_rate, 1, 1e-4);
    const Machine slow = with_phases(overrides, machine, /*longer=*/2);
    EXPECT_GT(simulate(overrides, 4, 4, slow).stages[0].mean.linear / at_rate, 1.8);
  }
}

TEST(SimulateStep, phases_of_another_model_are_refused) {
  const auto refusal = [](const std::vector<std::string>& overrides, const Machine& machine) {
    try {
      simulate(overrides, 2, 2, machine);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  Machine machine = with_phases({}, machine_by_name("h200"));
  EXPECT_EQ(refusal({"model.num_hidden_layers=2"}, machine), "");
  EXPECT_THAT(refusal({"model.intermediate_size=1024"}, machine),
              ::testing::HasSubstr("machine h200: its phases were measured with "
                                   "model.intermediate_size = 2048, and the configuration has "
                                   "1024"));
  EXPECT_THAT(refusal({"model.dtype=float32"}, machine), ::testing::HasSubstr("model.dtype"));
  machine.phases[0].phase = "dreaming";
  EXPECT_THAT(refusal({}, machine), ::testing::HasSubstr("no program has a phase dreaming"));
  std::erase_if(machine.phases, [](const PhaseTimes& times) {
    return times.phase == "pre_attention" || times.phase == "dreaming";
  });
  EXPECT_THAT(refusal({}, machine), ::testing::HasSubstr("its phases lack pre_attention forward"));
}

TEST(SimulateStep, a_step_takes_what_it_takes_besides_its_operations) {
  Machine machine = machine_by_name("h200");
  const double before = simulate({}, 2, 2, machine).seconds;
  machine.at(MachineNumber::kStepUs).value = 5000;
  const SimulatedStep step = simulate({}, 2, 2, machine);
  EXPECT_NEAR(step.seconds, before + 0.005, 1e-9);
  EXPECT_DOUBLE_EQ(step.stages[0].mean.besides, 0.005);
}

/// With sums of gradients, some of which all ranks of a stage share, too.
TEST(SimulateStep, one_rank_of_each_server_takes_as_long_as_all) {
  std::vector<std::string> overrides = kModel;
  overrides.insert(overrides.end(),
                   {"parallel.tensor_model_parallel_size=2", "batch.nano_batches=2",
                    "parallel.use_distributed_optimizer=true"});
  const Config config = load_config("", overrides);
  const BatchPlans plans = plan_later_batch(config, batch_of(2), /*num_workers=*/4);
  const BatchPrograms made(config, plans, ProgramRequest::Kind::kTrain, 4);
  std::vector<Program> all, firsts;
  for (int rank = 0; rank < 4; ++rank) all.push_back(made.of(rank));
  for (const int rank : {0, 2}) firsts.push_back(made.of(rank));
  const Machine machine = machine_by_name("h200");
  for (const bool in_order : {false, true}) {
    Wire wire = wire_of(machine);
    wire.in_order = in_order;
    const auto seconds = [&](const std::vector<Program>& programs) {
      return 1e-12 *
             static_cast<double>(
                 timed_step(programs, MachinePrices(config, machine, programs), wire).length_ps);
    };
    EXPECT_NEAR(seconds(firsts) / seconds(all), 1, 0.002) << in_order;
  }
}

}  // namespace
}  // namespace distca
