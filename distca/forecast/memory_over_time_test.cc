#include "distca/forecast/memory_over_time.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "distca/forecast/batch_programs.h"
#include "distca/forecast/memory_peak.h"
#include "distca/forecast/op_prices.h"
#include "distca/forecast/simulate_testing.h"

namespace distca {
namespace {

using ::testing::ElementsAre;

/// A step whose programs were played.
struct Steps {
  Config config;
  std::vector<Program> programs;
  TimedStep step;

  std::vector<MemoryPoint> memory(int rank) const {
    const auto i = static_cast<size_t>(rank);
    return memory_over_time(config, programs[i], rank, static_cast<int>(programs.size()),
                            step.ops[i]);
  }
  PeakMemory peak(int rank) const {
    PeakOfRank peak(config, rank, static_cast<int>(programs.size()));
    peak.add(programs[static_cast<size_t>(rank)]);
    return peak.peak();
  }
};

Steps played(const std::vector<std::string>& overrides, int workers) {
  std::vector<std::string> words = kModel;
  words.emplace_back("batch.nano_batches=4");
  words.insert(words.end(), overrides.begin(), overrides.end());
  Steps made{.config = load_config("", words), .programs = {}, .step = {}};
  Batch batch;
  for (const std::vector<int64_t>& lengths : std::vector<std::vector<int64_t>>{
           {12000, 3000, 1384}, {9000, 7000, 384}, {16384}, {2000, 14384}})
    batch.push_back({.nano_batch = NanoBatch::from_lengths(lengths), .sources = {}});
  const BatchPlans plans = plan_later_batch(made.config, batch, workers, {}, /*trains=*/true);
  const BatchPrograms programs(made.config, plans, ProgramRequest::Kind::kTrain, workers);
  for (int rank = 0; rank < workers; ++rank) made.programs.push_back(programs.of(rank));
  const Machine machine = machine_by_name("h200");
  const MachinePrices prices(made.config, machine, made.programs);
  made.step = timed_step(made.programs, prices, wire_of(machine));
  return made;
}

const std::vector<std::string> kPipeline = {"parallel.pipeline_model_parallel_size=2"};

TEST(MemoryOverTime, its_highest_is_the_predicted_peak_to_the_byte) {
  for (const auto& overrides : std::vector<std::vector<std::string>>{
           {},
           {"train.overlap=none"},
           {"parallel.use_distributed_optimizer=true"},
           {"train.recompute=full", "exchange.keys=redispatch"},
           {"train.recompute=selective", "train.device=cuda", "comm.backend=nccl"},
           {"parallel.tensor_model_parallel_size=2"},
           kPipeline,
           {"parallel.pipeline_model_parallel_size=2",
            "parallel.outstanding_weight_gradients=2"}}) {
    const Steps steps = played(overrides, 4);
    for (int rank = 0; rank < 4; ++rank) {
      const std::vector<MemoryPoint> points = steps.memory(rank);
      EXPECT_EQ(highest(points).bytes, steps.peak(rank).total())
          << ::testing::PrintToString(overrides) << " " << rank;
      EXPECT_EQ(points.front().at_ps, 0);
      EXPECT_TRUE(std::ranges::is_sorted(points, {}, &MemoryPoint::at_ps));
      EXPECT_LE(points.back().at_ps, steps.step.length_ps);
      EXPECT_LT(points.back().bytes, highest(points).bytes) << "activations are gone";
    }
  }
}

TEST(MemoryOverTime, the_highest_is_reached_while_its_operation_is_played) {
  const Steps steps = played(kPipeline, 4);
  for (int rank = 0; rank < 4; ++rank) {
    const std::vector<Op>& ops = steps.programs[static_cast<size_t>(rank)].ops;
    const std::string where = steps.peak(rank).where;
    const int64_t at_ps = highest(steps.memory(rank)).at_ps;
    const auto is_it = [&](const Op& op) {
      return describe(op) == where &&
             steps.step.ops[static_cast<size_t>(rank)][static_cast<size_t>(&op - ops.data())]
                     .begin_ps == at_ps;
    };
    EXPECT_TRUE(std::ranges::any_of(ops, is_it)) << rank << ": " << where << " at " << at_ps;
  }
}

TEST(MemoryOverTime, thinned_keeps_ends_and_the_extremes_of_equal_times) {
  std::vector<MemoryPoint> points;
  for (int64_t i = 0; i < 1000; ++i)
    points.push_back({.at_ps = i, .bytes = i == 501 ? 1e6 : static_cast<double>(i % 10)});
  const std::vector<MemoryPoint> few = thinned(points, 8);
  // Three equal lengths between the ends: from 1 on, from 334 on, from 667 on.
  // 340 is no higher and no lower than what is held since 10.
  EXPECT_THAT(few, ElementsAre(points[0], points[9], points[10], points[501], points[669],
                               points[670], points[999]));
  EXPECT_EQ(thinned(points, 1000), points);
  EXPECT_EQ(highest(thinned(points, 4)), points[501]);
}

}  // namespace
}  // namespace distca
