#include "distca/plan/pipeline/ticks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>

namespace distca {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

/// "F 1 0 -": forward, stage 0 has micro-batch 1, stage 1 has 0, stage 2 none.
std::string describe(const Tick& tick) {
  std::string text = tick.stages[0].pass == Pass::kForward ? "F" : "B";
  for (const TickStage& stage : tick.stages)
    text += stage.micro_batch < 0 ? " -" : " " + std::to_string(stage.micro_batch);
  return text;
}

std::vector<std::string> describe(const std::vector<Tick>& ticks) {
  std::vector<std::string> all;
  for (const Tick& tick : ticks) all.push_back(describe(tick));
  return all;
}

TEST(Grid, places_workers_by_stage_and_dedicated_servers_behind) {
  const Grid grid{.stages = 2, .replicas = 3, .dedicated = 1};
  EXPECT_EQ(grid.num_workers(), 6);
  EXPECT_EQ(grid.num_ranks(), 7);
  EXPECT_EQ(grid.rank(1, 2), 5);
  EXPECT_EQ(grid.stage(5), 1);
  EXPECT_EQ(grid.replica(5), 2);
  EXPECT_EQ(grid.stage(2), 0);
  EXPECT_EQ(grid.stage(6), -1);
  EXPECT_EQ(grid.replica(6), -1);
}

TEST(AlignedTicks, of_two_stages_and_two_micro_batches_are_those_of_the_paper) {
  EXPECT_THAT(describe(aligned_ticks(2, 2, true)),
              ElementsAre("F 0 -", "F 1 0", "B - 0", "F - 1", "B 0 1", "B 1 -"));
}

TEST(AlignedTicks, of_one_stage_take_turns) {
  EXPECT_THAT(describe(aligned_ticks(1, 2, true)), ElementsAre("F 0", "B 0", "F 1", "B 1"));
}

TEST(AlignedTicks, of_fewer_micro_batches_than_stages_never_fill_the_pipeline) {
  EXPECT_THAT(describe(aligned_ticks(3, 1, true)),
              ElementsAre("F 0 - -", "F - 0 -", "F - - 0", "B - - 0", "B - 0 -", "B 0 - -"));
}

TEST(AlignedTicks, of_an_evaluation_are_forward_alone) {
  EXPECT_THAT(describe(aligned_ticks(2, 3, false)),
              ElementsAre("F 0 -", "F 1 0", "F 2 1", "F - 2"));
}

TEST(AlignedTicks, count_and_hold_what_the_formulas_say) {
  for (int stages = 1; stages <= 8; ++stages) {
    for (int micro_batches = 1; micro_batches <= 16; ++micro_batches) {
      const std::vector<Tick> ticks = aligned_ticks(stages, micro_batches, true);
      const auto forward = std::ranges::count_if(
          ticks, [](const Tick& tick) { return tick.stages[0].pass == Pass::kForward; });
      EXPECT_EQ(forward, micro_batches + stages - 1);
      EXPECT_EQ(std::ssize(ticks), 2 * (micro_batches + stages - 1));
      int working = 0;
      for (const Tick& tick : ticks) working += tick.num_working();
      EXPECT_EQ(working, 2 * stages * micro_batches);
      for (int stage = 0; stage < stages; ++stage) {
        EXPECT_EQ(most_in_flight(ticks, stage),
                  std::min(micro_batches, 2 * (stages - 1 - stage) + 1))
            << stages << " stages, " << micro_batches << " micro-batches, stage " << stage;
      }
    }
  }
}

TEST(Ticks, every_stage_plays_every_micro_batch_once_a_pass_after_its_input_was_made) {
  for (int stages = 1; stages <= 8; ++stages) {
    for (int micro_batches = 1; micro_batches <= 16; ++micro_batches) {
      for (const bool aligned : {true, false}) {
        const std::vector<Tick> ticks = aligned
                                            ? aligned_ticks(stages, micro_batches, /*trains=*/true)
                                            : one_forward_one_backward_ticks(stages, micro_batches);
        EXPECT_THAT(ticks, SizeIs(2 * (micro_batches + stages - 1)));
        std::map<std::tuple<int, int, Pass>, int> played;  // stage, micro-batch, pass: tick
        const auto before = [&](int stage, int micro_batch, Pass pass, int tick) {
          const auto found = played.find({stage, micro_batch, pass});
          EXPECT_TRUE(found != played.end() && found->second < tick)
              << stages << " stages: stage " << stage << ", micro-batch " << micro_batch;
        };
        for (int t = 0; t < static_cast<int>(ticks.size()); ++t) {
          ASSERT_THAT(ticks[t].stages, SizeIs(stages));
          for (int stage = 0; stage < stages; ++stage) {
            const auto& [micro_batch, pass, virtual_stage] = ticks[t].stages[stage];
            EXPECT_EQ(virtual_stage, 0);
            if (micro_batch < 0) continue;
            EXPECT_TRUE(played.emplace(std::tuple{stage, micro_batch, pass}, t).second);
            if (pass == Pass::kForward) {
              if (stage > 0) before(stage - 1, micro_batch, pass, t);
            } else {
              before(stage, micro_batch, Pass::kForward, t);
              if (stage + 1 < stages) before(stage + 1, micro_batch, pass, t);
            }
          }
        }
        EXPECT_THAT(played, SizeIs(2 * stages * micro_batches));
      }
    }
  }
}

TEST(InterleavedTicks, every_virtual_stage_plays_every_micro_batch_once_after_its_input_was_made) {
  for (const auto& [stages, virtual_stages, micro_batches] :
       {std::tuple{1, 2, 3}, {2, 2, 2}, {2, 4, 6}, {3, 2, 6}, {4, 3, 8}, {8, 2, 16}}) {
    const std::vector<Tick> ticks = interleaved_ticks(stages, virtual_stages, micro_batches);
    EXPECT_THAT(ticks, SizeIs(2 * virtual_stages * micro_batches + 2 * (stages - 1)));
    std::map<std::tuple<int, int, Pass>, int> played;  // virtual stage, micro-batch, pass: tick
    for (int t = 0; t < static_cast<int>(ticks.size()); ++t) {
      for (int stage = 0; stage < stages; ++stage) {
        const auto& [micro_batch, pass, virtual_stage] = ticks[t].stages[stage];
        if (micro_batch < 0) continue;
        const int at = virtual_stage * stages + stage;
        EXPECT_TRUE(played.emplace(std::tuple{at, micro_batch, pass}, t).second);
        const bool forward = pass == Pass::kForward;
        const bool turns = !forward && at + 1 == stages * virtual_stages;
        if (forward && at == 0) continue;
        const auto before = played.find({turns     ? at
                                         : forward ? at - 1
                                                   : at + 1,
                                         micro_batch, turns ? Pass::kForward : pass});
        EXPECT_TRUE(before != played.end() && before->second < t)
            << stages << " x " << virtual_stages << ": " << at << ", " << micro_batch;
      }
    }
    EXPECT_THAT(played, SizeIs(2 * stages * virtual_stages * micro_batches));
    for (int stage = 0; stage < stages; ++stage) {
      EXPECT_EQ(most_in_flight(ticks, stage),
                std::min(virtual_stages * micro_batches,
                         2 * (stages - 1 - stage) + (virtual_stages - 1) * stages + 1));
    }
  }
}

TEST(Ticks, the_first_ticks_are_forwards_and_then_passes_take_turns) {
  std::string passes;
  for (const Tick& tick : aligned_ticks(3, 4, /*trains=*/true))
    passes += tick.stages[0].pass == Pass::kForward ? 'F' : 'B';
  EXPECT_EQ(passes, "FFFBFBFBFBBB");
}

}  // namespace
}  // namespace distca
